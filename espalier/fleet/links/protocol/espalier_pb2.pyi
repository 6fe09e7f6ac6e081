from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "welcome", "refusal", "head", "chunk", "ack", "reach", "moved", "resume", "ping", "pong", "bye", "enrol", "enrolled", "restart")
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
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., reach: _Optional[_Union[Reach, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., enrol: _Optional[_Union[Enrol, _Mapping]] = ..., enrolled: _Optional[_Union[Enrolled, _Mapping]] = ..., restart: _Optional[_Union[Restart, _Mapping]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("address", "name", "role", "life", "stamp", "via", "samples", "aggregates", "endpoint", "seconds_per_batch", "busy", "model_seconds")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    VIA_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_BATCH_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    MODEL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    address: int
    name: str
    role: str
    life: int
    stamp: int
    via: int
    samples: int
    aggregates: bool
    endpoint: str
    seconds_per_batch: float
    busy: bool
    model_seconds: float
    def __init__(self, address: _Optional[int] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., life: _Optional[int] = ..., stamp: _Optional[int] = ..., via: _Optional[int] = ..., samples: _Optional[int] = ..., aggregates: bool = ..., endpoint: _Optional[str] = ..., seconds_per_batch: _Optional[float] = ..., busy: bool = ..., model_seconds: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "member", "wish", "run", "peer")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    version: int
    member: Member
    wish: int
    run: str
    peer: bool
    def __init__(self, version: _Optional[int] = ..., member: _Optional[_Union[Member, _Mapping]] = ..., wish: _Optional[int] = ..., run: _Optional[str] = ..., peer: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "address", "parent", "run", "charter", "now", "crl")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    CRL_FIELD_NUMBER: _ClassVar[int]
    version: int
    address: int
    parent: Member
    run: str
    charter: bytes
    now: float
    crl: bytes
    def __init__(self, version: _Optional[int] = ..., address: _Optional[int] = ..., parent: _Optional[_Union[Member, _Mapping]] = ..., run: _Optional[str] = ..., charter: _Optional[bytes] = ..., now: _Optional[float] = ..., crl: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("name", "address", "refused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: int
    refused: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[int] = ..., refused: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("envelope", "content", "parts")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    envelope: Envelope
    content: bytes
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, envelope: _Optional[_Union[Envelope, _Mapping]] = ..., content: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

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

class Content(_message.Message):
    __slots__ = ("order", "report", "word", "control")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    order: Order
    report: Report
    word: Word
    control: Control
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., word: _Optional[_Union[Word, _Mapping]] = ..., control: _Optional[_Union[Control, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("group", "part")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    group: str
    part: int
    def __init__(self, group: _Optional[str] = ..., part: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("id", "sender", "to", "models", "updates", "round", "clock", "sent", "budget", "anchor", "ask", "args", "back")
    ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    id: int
    sender: int
    to: int
    models: _containers.RepeatedCompositeFieldContainer[Model]
    updates: int
    round: int
    clock: int
    sent: float
    budget: float
    anchor: int
    ask: str
    args: Value
    back: bool
    def __init__(self, id: _Optional[int] = ..., sender: _Optional[int] = ..., to: _Optional[int] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., updates: _Optional[int] = ..., round: _Optional[int] = ..., clock: _Optional[int] = ..., sent: _Optional[float] = ..., budget: _Optional[float] = ..., anchor: _Optional[int] = ..., ask: _Optional[str] = ..., args: _Optional[_Union[Value, _Mapping]] = ..., back: bool = ...) -> None: ...

class Samples(_message.Message):
    __slots__ = ("group", "count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    count: int
    def __init__(self, group: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("order", "dispatcher", "sender", "to", "models", "samples", "updates", "round", "sent", "download", "compute", "stats")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DISPATCHER_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    order: int
    dispatcher: int
    sender: int
    to: int
    models: _containers.RepeatedCompositeFieldContainer[Model]
    samples: _containers.RepeatedCompositeFieldContainer[Samples]
    updates: int
    round: int
    sent: float
    download: float
    compute: float
    stats: Value
    def __init__(self, order: _Optional[int] = ..., dispatcher: _Optional[int] = ..., sender: _Optional[int] = ..., to: _Optional[int] = ..., models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., samples: _Optional[_Iterable[_Union[Samples, _Mapping]]] = ..., updates: _Optional[int] = ..., round: _Optional[int] = ..., sent: _Optional[float] = ..., download: _Optional[float] = ..., compute: _Optional[float] = ..., stats: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Word(_message.Message):
    __slots__ = ("kind", "sender", "to", "sent", "data")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: str
    sender: int
    to: int
    sent: float
    data: Value
    def __init__(self, kind: _Optional[str] = ..., sender: _Optional[int] = ..., to: _Optional[int] = ..., sent: _Optional[float] = ..., data: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("kind", "data")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    kind: str
    data: Value
    def __init__(self, kind: _Optional[str] = ..., data: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("nothing", "truth", "whole", "real", "text", "raw", "items", "row", "bag", "table", "array", "model", "big", "cut")
    NOTHING_FIELD_NUMBER: _ClassVar[int]
    TRUTH_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    BAG_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BIG_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    nothing: bool
    truth: bool
    whole: int
    real: float
    text: str
    raw: bytes
    items: Items
    row: Items
    bag: Items
    table: Table
    array: Array
    model: int
    big: str
    cut: Cut
    def __init__(self, nothing: bool = ..., truth: bool = ..., whole: _Optional[int] = ..., real: _Optional[float] = ..., text: _Optional[str] = ..., raw: _Optional[bytes] = ..., items: _Optional[_Union[Items, _Mapping]] = ..., row: _Optional[_Union[Items, _Mapping]] = ..., bag: _Optional[_Union[Items, _Mapping]] = ..., table: _Optional[_Union[Table, _Mapping]] = ..., array: _Optional[_Union[Array, _Mapping]] = ..., model: _Optional[int] = ..., big: _Optional[str] = ..., cut: _Optional[_Union[Cut, _Mapping]] = ...) -> None: ...

class Items(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("keys", "values")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[Value]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, keys: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ("starts", "stops", "data")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    stops: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, starts: _Optional[_Iterable[int]] = ..., stops: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...
