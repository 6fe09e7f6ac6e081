"""The datasets of the catalogue: files, addresses, checksums, licences, citations."""

from __future__ import annotations

from espalier.data.loaders import (
    cifar,
    cityscapes,
    digits,
    ham10000,
    har,
    idx,
    imagefolder,
    leaf,
    magnet,
    newsgroups,
    svhn,
)
from espalier.data.loaders.base import DatasetEntry, Source
from espalier.data.loaders.npz import prepared

MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
QMNIST_URL = "https://raw.githubusercontent.com/facebookresearch/qmnist/master/"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"


def _sources(base: str, digests: dict[str, str]) -> tuple[Source, ...]:
    return tuple(Source(file, base + file, digest) for file, digest in digests.items())


ENTRIES: tuple[DatasetEntry, ...] = (
    digits.ENTRY,
    DatasetEntry(
        name="mnist",
        kind="classification",
        samples=(60_000, 10_000),
        classes=10,
        licence="CC BY-SA 3.0 (writers: BSD-3-Clause)",
        citation="LeCun et al., Proc. IEEE 86(11), 1998; writers: Yadav & Bottou (QMNIST), NeurIPS 2019",
        folders=("mnist", "MNIST/raw", "MNIST"),
        layouts=(idx.mnist_layout("mnist", tuple("0123456789")), prepared("mnist", "classification", 10)),
        sources=_sources(
            MNIST_URL,
            {
                "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
            },
        )
        + _sources(
            QMNIST_URL,
            {
                "qmnist-train-labels-idx2-int.gz": "md5:0058f8dd561b90ffdd0f734c6a30e5e4",
                "qmnist-test-labels-idx2-int.gz": "md5:5b5b05890a5e13444e108efe57b788aa",
            },
        ),
    ),
    DatasetEntry(
        name="fashion-mnist",
        kind="classification",
        samples=(60_000, 10_000),
        classes=10,
        licence="MIT",
        citation="Xiao, Rasul & Vollgraf, arXiv:1708.07747, 2017",
        folders=("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST"),
        layouts=(
            idx.mnist_layout(
                "fashion-mnist",
                (
                    "t-shirt",
                    "trouser",
                    "pullover",
                    "dress",
                    "coat",
                    "sandal",
                    "shirt",
                    "sneaker",
                    "bag",
                    "ankle boot",
                ),
            ),
            prepared("fashion-mnist", "classification", 10),
        ),
        aliases=("fmnist",),
        sources=_sources(
            FASHION_URL,
            {
                "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
    ),
    DatasetEntry(
        name="emnist",
        kind="classification",
        samples=(112_800, 18_800),
        classes=47,
        licence="public domain (NIST)",
        citation="Cohen et al., EMNIST, IJCNN 2017 (the balanced split)",
        folders=("emnist", "emnist/gzip", "EMNIST/raw", "EMNIST"),
        layouts=(*idx.EMNIST_LAYOUTS, prepared("emnist", "classification", 47)),
        aliases=("emnist-balanced",),
        sources=_sources(
            "https://biometrics.nist.gov/cs_links/EMNIST/",
            {"gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
        ),
    ),
    DatasetEntry(
        name="femnist",
        kind="classification",
        samples=(725_000, 80_000),
        classes=62,
        licence="BSD-2-Clause (LEAF), public domain (NIST)",
        citation="Caldas et al., LEAF, arXiv:1812.01097, 2018",
        folders=("femnist", "femnist/data", "FEMNIST"),
        layouts=leaf.LAYOUTS,
        by_hand=(
            "Clone github.com/TalwalkarLab/leaf, run `data/femnist/preprocess.sh -s niid --sf 1.0 -t sample` in it, "
            "and put the resulting train and test folders into a folder femnist of a data directory."
        ),
    ),
    DatasetEntry(
        name="cifar10",
        kind="classification",
        samples=(50_000, 10_000),
        classes=10,
        licence="none stated",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        folders=("cifar10", "cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifar-10-batches-bin"),
        layouts=(*cifar.layouts(hundred=False), prepared("cifar10", "classification", 10)),
        sources=_sources(CIFAR_URL, {"cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a"}),
    ),
    DatasetEntry(
        name="cifar100",
        kind="classification",
        samples=(50_000, 10_000),
        classes=100,
        licence="none stated",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        folders=("cifar100", "cifar100/cifar-100-python", "cifar-100-python", "cifar-100-binary"),
        layouts=(*cifar.layouts(hundred=True), prepared("cifar100", "classification", 100)),
        sources=_sources(CIFAR_URL, {"cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85"}),
    ),
    DatasetEntry(
        name="svhn",
        kind="classification",
        samples=(73_257, 26_032),
        classes=10,
        licence="non-commercial use only",
        citation="Netzer et al., Reading Digits in Natural Images, NIPS workshop 2011",
        folders=("svhn", "SVHN"),
        layouts=(*svhn.LAYOUTS, prepared("svhn", "classification", 10)),
        sources=_sources(
            SVHN_URL,
            {
                "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
            },
        ),
    ),
    DatasetEntry(
        name="newsgroups20",
        kind="classification",
        samples=(11_314, 7_532),
        classes=20,
        licence="none stated (public Usenet posts)",
        citation="Lang, NewsWeeder, ICML 1995 (the bydate version)",
        folders=("newsgroups20", "20newsgroups", "20news-bydate", "20news"),
        layouts=newsgroups.LAYOUTS,
        aliases=("20newsgroups", "20news", "newsgroups"),
        sources=(
            Source(
                "20news-bydate.tar.gz",
                "https://ndownloader.figshare.com/files/5975967",
                "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
            ),
        ),
    ),
    DatasetEntry(
        name="ham10000",
        kind="classification",
        samples=(8_012, 2_003),
        classes=7,
        licence="CC BY-NC 4.0",
        citation="Tschandl, Rosendahl & Kittler, Scientific Data 5:180161, 2018",
        folders=("ham10000", "HAM10000"),
        layouts=(*ham10000.LAYOUTS, prepared("ham10000", "classification", 7, sized=True)),
        by_hand=(
            "Download HAM10000_images_part_1.zip, HAM10000_images_part_2.zip and HAM10000_metadata from "
            "doi.org/10.7910/DVN/DBW86T (its terms must be accepted) and extract them into a folder ham10000 of a "
            "data directory."
        ),
    ),
    DatasetEntry(
        name="cityscapes",
        kind="segmentation",
        samples=(2_975, 500),
        classes=19,
        licence="non-commercial use only",
        citation="Cordts et al., The Cityscapes Dataset, CVPR 2016",
        folders=("cityscapes", "Cityscapes"),
        layouts=cityscapes.LAYOUTS,
        by_hand=(
            "Register at cityscapes-dataset.com, download leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip, "
            "and extract both into a folder cityscapes of a data directory."
        ),
    ),
    DatasetEntry(
        name="imagenet10",
        kind="classification",
        samples=(13_000, 500),
        classes=10,
        licence="ImageNet's terms of access",
        citation="Deng et al., ImageNet, CVPR 2009 (ten classes)",
        folders=("imagenet10", "imagenet-10", "ImageNet-10"),
        layouts=(imagefolder.imagenet10_layout(),),
        by_hand=(
            "Get ten classes of ImageNet (image-net.org, terms must be accepted) and lay them out as "
            "imagenet10/train/CLASS/*.JPEG and imagenet10/val/CLASS/*.JPEG in a data directory."
        ),
    ),
    DatasetEntry(
        name="har",
        kind="classification",
        samples=(7_352, 2_947),
        classes=6,
        licence="CC BY 4.0",
        citation="Anguita et al., A Public Domain Dataset for Human Activity Recognition, ESANN 2013",
        folders=("har", "UCI HAR Dataset", "har/UCI HAR Dataset"),
        layouts=(*har.LAYOUTS, prepared("har", "classification", 6)),
        aliases=("uci-har",),
        by_hand=(
            "Download Human Activity Recognition Using Smartphones from archive.ics.uci.edu/dataset/240 and extract "
            "it into a folder har of a data directory."
        ),
    ),
    magnet.ENTRY,
)
