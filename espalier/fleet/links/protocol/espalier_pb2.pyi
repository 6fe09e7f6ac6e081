from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "welcome", "refusal", "head", "chunk", "ack", "reach", "moved", "resume", "ping", "pong", "bye", "enrol", "enrolled", "restart", "waiting", "request", "answer", "piece")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    ENROL_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    welcome: Welcome
    refusal: Refusal
    head: Head
    chunk: Chunk
    ack: Ack
    reach: Reach
    moved: Moved
    resume: Resume
    ping: Ping
    pong: Pong
    bye: Bye
    enrol: Enrol
    enrolled: Enrolled
    restart: Restart
    waiting: Waiting
    request: Request
    answer: Answer
    piece: Piece
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., reach: _Optional[_Union[Reach, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., enrol: _Optional[_Union[Enrol, _Mapping]] = ..., enrolled: _Optional[_Union[Enrolled, _Mapping]] = ..., restart: _Optional[_Union[Restart, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("address", "name", "role", "incarnation", "stamp", "via", "samples", "aggregates", "endpoint", "seconds_per_batch", "busy", "model_seconds", "version", "certificate", "signature")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_BATCH_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MODEL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    address: int
    name: str
    role: str
    incarnation: int
    stamp: int
    via: int
    samples: int
    aggregates: bool
    endpoint: str
    seconds_per_batch: float
    busy: bool
    model_seconds: float
    version: str
    certificate: bytes
    signature: bytes
    def __init__(self, address: _Optional[int] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., incarnation: _Optional[int] = ..., stamp: _Optional[int] = ..., via: _Optional[int] = ..., samples: _Optional[int] = ..., aggregates: bool = ..., endpoint: _Optional[str] = ..., seconds_per_batch: _Optional[float] = ..., busy: bool = ..., model_seconds: _Optional[float] = ..., version: _Optional[str] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "member", "wish", "run", "peer", "probe", "newest", "declined", "why")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    version: int
    member: Member
    wish: int
    run: str
    peer: bool
    probe: bool
    newest: int
    declined: str
    why: str
    def __init__(self, version: _Optional[int] = ..., member: _Optional[_Union[Member, _Mapping]] = ..., wish: _Optional[int] = ..., run: _Optional[str] = ..., peer: bool = ..., probe: bool = ..., newest: _Optional[int] = ..., declined: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "address", "parent", "run", "manifest", "now", "crl", "standing", "signed", "certificate", "signature")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    CRL_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    SIGNED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    version: int
    address: int
    parent: Member
    run: str
    manifest: bytes
    now: float
    crl: bytes
    standing: bool
    signed: float
    certificate: bytes
    signature: bytes
    def __init__(self, version: _Optional[int] = ..., address: _Optional[int] = ..., parent: _Optional[_Union[Member, _Mapping]] = ..., run: _Optional[str] = ..., manifest: _Optional[bytes] = ..., now: _Optional[float] = ..., crl: _Optional[bytes] = ..., standing: bool = ..., signed: _Optional[float] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("why", "final")
    WHY_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    why: str
    final: bool
    def __init__(self, why: _Optional[str] = ..., final: bool = ...) -> None: ...

class Reach(_message.Message):
    __slots__ = ("members", "gone", "full")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    gone: _containers.RepeatedScalarFieldContainer[int]
    full: bool
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., gone: _Optional[_Iterable[int]] = ..., full: bool = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("address", "stamp")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    address: int
    stamp: int
    def __init__(self, address: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("crl",)
    CRL_FIELD_NUMBER: _ClassVar[int]
    crl: bytes
    def __init__(self, crl: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sent", "ballast")
    SENT_FIELD_NUMBER: _ClassVar[int]
    BALLAST_FIELD_NUMBER: _ClassVar[int]
    sent: float
    ballast: bytes
    def __init__(self, sent: _Optional[float] = ..., ballast: _Optional[bytes] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("sent", "now")
    SENT_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    sent: float
    now: float
    def __init__(self, sent: _Optional[float] = ..., now: _Optional[float] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Enrol(_message.Message):
    __slots__ = ("name", "role", "wish")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    wish: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., wish: _Optional[int] = ...) -> None: ...

class Enrolled(_message.Message):
    __slots__ = ("name", "address", "refused", "full")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: int
    refused: str
    full: bool
    def __init__(self, name: _Optional[str] = ..., address: _Optional[int] = ..., refused: _Optional[str] = ..., full: bool = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("waiters",)
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    waiters: _containers.RepeatedCompositeFieldContainer[Waiter]
    def __init__(self, waiters: _Optional[_Iterable[_Union[Waiter, _Mapping]]] = ...) -> None: ...

class Waiter(_message.Message):
    __slots__ = ("name", "role", "parent", "version", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    parent: str
    version: str
    why: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., parent: _Optional[str] = ..., version: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("what", "data")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    what: str
    data: bytes
    def __init__(self, what: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("refused", "data")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    refused: str
    data: bytes
    def __init__(self, refused: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("path", "data")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("origin", "dest", "series", "number")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    DEST_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    origin: int
    dest: int
    series: int
    number: int
    def __init__(self, origin: _Optional[int] = ..., dest: _Optional[int] = ..., series: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("envelope", "content", "parts", "certificate", "signature")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    content: bytes
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    certificate: bytes
    signature: bytes
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., content: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("size", "encoding", "digest", "base")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    size: int
    encoding: int
    digest: bytes
    base: int
    def __init__(self, size: _Optional[int] = ..., encoding: _Optional[int] = ..., digest: _Optional[bytes] = ..., base: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("envelope", "part", "offset", "data", "checksum")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    part: int
    offset: int
    data: bytes
    checksum: int
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., part: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ...) -> None: ...

class Restart(_message.Message):
    __slots__ = ("envelope",)
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ...) -> None: ...
