"""The index of a folder: what a naive listing finds, from a file that notices every change."""

import hashlib
import multiprocessing
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import labelflow as lf
from labelflow.data import Data, index, open_source, scan, waiting
from labelflow.data import cache as cache_module
from labelflow.data.folder import Folder
from labelflow.data.index import FileIndex, Joined, open_index
from labelflow.files import atomic_write

Samples = list[tuple[str, int]]
TICK = 0.02  # seconds: longer than a file system's clock takes to move on


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of small folders, too, which trusts those that were modified just now."""
    monkeypatch.setenv("LABELFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "SMALL", 0)
    monkeypatch.setattr(scan, "SETTLED", -(10**18))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return grow(tmp_path / "photos", ["cat/1.png", "cat/2.jpg", "cat/deep/er/3.png", "dog/1.png", "dog/4.gif"])


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The class folders that were listed."""
    folders: list[str] = []

    def spy(folder: str) -> scan.Found:
        folders.append(folder)
        return scan.images_below(folder)

    monkeypatch.setattr(index, "images_below", spy)
    return folders


def grow(folder: Path, files: list[str]) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def samples(source: Folder) -> Samples:
    return list(zip(source.files(), source.labels.tolist(), strict=True))


def naive(root: Path, split: str, fraction: float, seed: int) -> Samples:
    """Of a folder that is divided, by its definition."""
    made: Samples = []
    for label, name in enumerate(sorted(path.name for path in root.iterdir() if path.is_dir() and path.name[0] != ".")):
        files = []
        for where, folders, names in os.walk(root / name, followlinks=True):
            folders[:] = [folder for folder in folders if folder[0] != "."]
            images = [one for one in names if one[0] != "." and one.lower().endswith((".png", ".jpeg"))]
            files += [os.path.relpath(os.path.join(where, one), root / name) for one in images]

        def order(file: str, name: str = name) -> bytes:
            return hashlib.blake2b(f"{seed} {name}/{file}".encode("utf-8", "surrogatepass"), digest_size=8).digest()

        aside = sorted(sorted(files), key=order)[: min(max(1, round(fraction * len(files))), len(files) - 1)]
        chosen = [file for file in sorted(files) if (file in aside) == (split == "val")]
        made += [(str(root / name / file), label) for file in chosen]
    return made


NAMES = st.sampled_from(
    ["a", "B", "é", "\U0001f600", "\ue000", ".h", "x y", "\udcff", "\udc80", "\udce9", "n\nl", "10"]
)
FILES = st.tuples(st.lists(NAMES, max_size=2), NAMES, st.sampled_from([".png", ".JPEG", ".txt", ".png.gz", ""])).map(
    lambda parts: "/".join([*parts[0], parts[1] + parts[2]])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(["cat", "Cow", "été", "z.png"]), st.sets(FILES, max_size=12), min_size=1),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(0, 3),
)
def test_a_folder_has_the_samples_of_a_naive_listing(
    cache: Path, tmp_path: Path, classes: dict[str, set[str]], fraction: float, seed: int
) -> None:
    """Fresh, from the cache, and in another process."""
    root = tmp_path / "data"
    shutil.rmtree(root, ignore_errors=True)
    for name, files in classes.items():
        grow(root / name, ["first.png", "second.png"])
        for file in sorted(files):
            with suppress(OSError):  # a file is where a folder should be, or names must be UTF-8 here
                grow(root / name, [file])
    for split in ("train", "val"):
        for _ in ("fresh", "cached"):
            source = Folder(root, split, fraction, seed)
            assert samples(source) == naive(root, split, fraction, seed)
            assert samples(pickle.loads(pickle.dumps(source))) == samples(source)
            for at, (path, label) in enumerate(samples(source)):
                below = os.path.splitext(os.path.relpath(path, root))[0]
                assert (source.name(at), source.key(at), source.labels[at]) == (path, below, label)


def test_val_may_lack_classes(tmp_path: Path) -> None:
    root = grow(tmp_path, [*(f"train/{name}/1.png" for name in "abcd"), "val/a/2.png", "val/c/3.png"])
    assert samples(Folder(root, "val")) == [(str(root / "val/a/2.png"), 0), (str(root / "val/c/3.png"), 2)]


def test_a_folder_is_listed_once(cache: Path, photos: Path, listed: list[str]) -> None:
    """For both splits, any seed and any spelling of its path."""
    first = samples(Folder(photos))
    assert len(listed) == 2
    assert samples(Folder(photos)) == first
    (photos.parent / "link").symlink_to(photos)
    for root in (photos, photos.parent / "link", os.path.relpath(photos)):
        for split in ("train", "val"):
            assert Folder(root, split, 0.4, seed=7).files()[0].startswith(f"{root}/cat/")
    assert len(listed) == 2


def test_small_folders_are_not_cached(cache: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SMALL", 6)
    Folder(photos)
    assert not cache.exists()
    grow(photos, ["dog/5.png"])
    Folder(photos)
    assert len(list(cache.rglob("*.index"))) == 1


def test_folders_that_were_just_modified_are_listed_again(
    cache: Path, photos: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file could have come within the same tick of the clock."""
    monkeypatch.setattr(scan, "SETTLED", 2 * 10**9)
    Folder(photos)
    Folder(photos)
    assert len(listed) == 4
    later = time.time_ns() + 3 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    Folder(photos)
    Folder(photos)
    assert len(listed) == 6


def replace_link(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a new file": lambda photos: grow(photos, ["dog/9.png"]),
    "a new file deep below": lambda photos: grow(photos, ["cat/deep/er/9.png"]),
    "a new class": lambda photos: grow(photos, ["emu/1.png", "emu/2.png"]),
    "a class less": lambda photos: shutil.rmtree(photos / "dog"),
    "a file less": lambda photos: (photos / "cat/1.png").unlink(),
    "another name": lambda photos: (photos / "cat/1.png").rename(photos / "cat/0.png"),
    "another name of a class": lambda photos: (photos / "cat").rename(photos / "kitten"),
    "another name of a folder": lambda photos: (photos / "cat/deep/er").rename(photos / "cat/deep/est"),
    "a new folder": lambda photos: grow(photos, ["cat/more/9.png"]),
    "a new link": lambda photos: (photos / "cat/too").symlink_to(photos.parent / "one"),
    "another target of a link": lambda photos: replace_link(photos / "cat/link", photos.parent / "two"),
    "another target of its target": lambda photos: replace_link(photos.parent / "there", photos.parent / "two"),
    "a new file where a link leads": lambda photos: grow(photos.parent / "one", ["9.png"]),
    "a link that led nowhere": lambda photos: grow(photos.parent / "unmounted", ["1.png"]),
    "one that is a class": lambda photos: grow(photos.parent / "unmounted class", ["1.png", "2.png"]),
    "one that was modified at the same time": lambda photos: [
        set_time(photos.parent / "two", photos.parent / "one"),
        replace_link(photos.parent / "there", photos.parent / "two"),
    ],
    "a new file, and the old time": lambda photos: [
        set_time(photos.parent / "two", photos / "cat"),
        grow(photos, ["cat/9.png"]),
        set_time(photos / "cat", photos.parent / "two"),
    ],
}


def set_time(folder: Path, other: Path) -> None:
    """As tar and rsync do."""
    os.utime(folder, ns=(other.stat().st_atime_ns, other.stat().st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed(cache: Path, photos: Path, listed: list[str], change: str) -> None:
    grow(photos.parent, ["one/1.png", "two/2.png"])
    (photos.parent / "there").symlink_to(photos.parent / "one")
    for link, target in (
        ("cat/link", "one"),
        ("cat/via", "there"),
        ("dog/later", "unmounted"),
        ("a", "unmounted class"),
    ):
        (photos / link).symlink_to(photos.parent / target)
    before = [samples(Folder(photos, split)) for split in ("train", "val")]
    assert [samples(Folder(photos, split)) for split in ("train", "val")] == before
    assert len(listed) == 2  # so it is the cached index that has to notice
    time.sleep(TICK)
    CHANGES[change](photos)
    after = [samples(Folder(photos, split)) for split in ("train", "val")]
    shutil.rmtree(cache)
    assert after == [samples(Folder(photos, split)) for split in ("train", "val")] != before


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "short": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "shorter than a digest": lambda file: file.write_bytes(b"short"),
    "foreign": lambda file: file.write_text("other words " * 100),
    "a name": lambda file: file.write_bytes(file.read_bytes().replace(b"2.jpg", b"3.jpg")),
    "a size": lambda file: file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:]),
    "a folder": lambda file: [file.unlink(), file.mkdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again(cache: Path, photos: Path, listed: list[str], damage: str) -> None:
    before = samples(Folder(photos))
    (file,) = cache.rglob("*.index")
    DAMAGES[damage](file)
    assert samples(Folder(photos)) == before
    assert len(listed) == 4
    if damage != "a folder":
        assert samples(Folder(photos)) == before
        assert len(listed) == 4
    assert not list(cache.rglob("*.draft"))


def test_a_cache_of_another_version_is_made_again(
    cache: Path, photos: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Folder(photos)
    monkeypatch.setattr(index, "FORMAT", 0)
    Folder(photos)
    assert len(listed) == 4


def test_a_version_that_knows_other_images_lists_again(
    cache: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(photos, ["dog/5.new"])
    Folder(photos)
    for module in (index, scan):
        monkeypatch.setattr(module, "EXTENSIONS", {".new", ".png"})
    assert sorted(Path(path).name for path in open_index(photos, print).names(range(4))) == [
        "1.png",
        "1.png",
        "3.png",
        "5.new",
    ]


def test_a_few_folders_are_looked_at_without_threads(
    cache: Path, photos: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = samples(Folder(photos))
    monkeypatch.setattr(waiting, "ThreadPool", None)
    assert samples(Folder(photos)) == before
    assert len(listed) == 2


@pytest.mark.parametrize("where", ["a file", "no home"])
def test_without_a_cache(cache: Path, photos: Path, where: str, request: pytest.FixtureRequest) -> None:
    before = samples(Folder(photos))
    shutil.rmtree(cache)
    if where == "a file":
        cache.touch()
    else:
        request.getfixturevalue("_no_home")
    source = Folder(photos)
    assert samples(source) == samples(pickle.loads(pickle.dumps(source))) == before


def many(folder: Path, files: int) -> Path:
    return grow(
        folder, [f"{name}/image_of_a_{name}_{number:07d}.jpeg" for name in ("x", "y") for number in range(files)]
    )


def test_workers_map_the_cache(cache: Path, tmp_path: Path) -> None:
    """What is sent to a spawned worker is a path and a few bytes for each sample."""
    root = many(tmp_path / "many", 500)
    source = Folder(root, val_fraction=0.5)
    assert len(pickle.dumps(source.paths.files)) < 500
    assert len(pickle.dumps(source)) < 2500 + 8 * len(source)
    whole = Folder(root, "val", val_fraction=1)
    assert len(pickle.dumps(whole)) < 2500 + 4 * len(whole)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(source.name, range(5)) == list(source.files()[:5])


@pytest.mark.parametrize("replaced", [True, False])
def test_workers_of_a_run_whose_cache_is_gone_get_what_it_started_with(
    cache: Path, photos: Path, replaced: bool
) -> None:
    source = open_index(photos, print)
    before = list(source.names(range(len(source))))
    sent = pickle.dumps(source)
    if replaced:
        time.sleep(TICK)
        grow(photos, ["cat/0.png"])
        open_index(photos, print)
    else:
        shutil.rmtree(cache)
    again: FileIndex = pickle.loads(pickle.dumps(source))
    assert list(again.names(range(len(again)))) == list(source.names(range(len(source)))) == before
    with pytest.raises(ValueError, match="was replaced or removed while workers started"):
        pickle.loads(sent)


def test_writers_have_drafts_of_their_own(cache: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that another process has just mapped under its new name must not be written to again."""
    drafts = []

    @contextmanager
    def spy(path: Path, mark: str) -> Iterator[Path]:
        with atomic_write(path, mark) as draft:
            drafts.append(draft)
            yield draft

    monkeypatch.setattr(cache_module, "atomic_write", spy)
    for _ in range(2):
        Folder(photos)
        shutil.rmtree(cache)
    assert len(set(drafts)) == 2


def test_several_open_it_at_once(cache: Path, photos: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: samples(Folder(photos)), range(12)))
    assert all(one == found[0] for one in found)
    assert [path.suffix for path in cache.rglob("*") if path.is_file()] == [".index"]


@given(st.lists(st.lists(st.text(max_size=3), max_size=6), max_size=4), st.integers(-9, 30), st.integers(-9, 30))
def test_joined_sequences(parts: list[list[str]], first: int, last: int) -> None:
    joined, plain = Joined(parts), [one for part in parts for one in part]
    assert list(joined) == plain
    assert [joined[at] for at in range(-len(plain), len(plain))] == plain + plain
    assert list(joined[first:last]) == plain[first:last]
    with pytest.raises(IndexError):
        joined[len(plain)]


@given(st.slices(40), st.sampled_from([3, 7, 100]))
def test_parts_of_paths(many_paths: Folder, part: slice, size: int) -> None:
    plain = [many_paths.name(at) for at in range(len(many_paths))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "PART", size)
        assert list(many_paths.files()) == plain
        assert list(many_paths.files()[part]) == plain[part]


@pytest.fixture(scope="module")
def many_paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    return Folder(many(tmp_path_factory.mktemp("many"), 25), val_fraction=0.2)


def test_progress_of_a_long_listing(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    open_source(Data(source=str(photos)), "train", lines.append)
    assert not lines
    monkeypatch.setattr(waiting, "SECONDS", -1.0)
    open_source(Data(source=str(photos)), "train", lines.append)
    assert lines == [f"listed {count} files of {photos} ..." for count in (3, 5)]


COMMANDS: dict[str, Callable[..., object]] = {
    "train": partial(lf.train, "quickstart"),
    "annotate": partial(lf.annotate, model="vit_tiny_patch16_224", weights="random"),
    "compare": partial(lf.compare, "quickstart", ["cutmix", "tl_align"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_show_the_progress(
    photos: Path, command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then they end: there is only one class."""
    monkeypatch.setattr(waiting, "SECONDS", -1.0)
    shutil.rmtree(photos / "dog")
    for quiet in (False, True):
        with pytest.raises(ValueError, match="class"):
            COMMANDS[command](data=photos, out=photos.parent / "out", workers=0, quiet=quiet)
        assert (f"listed 3 files of {photos} ...\n" in capfd.readouterr().out) != quiet
