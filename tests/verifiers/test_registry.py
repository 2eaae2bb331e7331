"""Verifiers by name: this project's without installation, others through their distributions' entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import verifiers
from ledger.errors import InputError, MissingExtra
from verifiers import registry
from verifiers.answers import ExactAnswer
from verifiers.errors import InvalidConfig, UnknownVerifier

ROOT = Path(__file__).resolve().parents[2]


def test_the_import_name_is_this_project_s():
    assert Path(verifiers.__file__) == ROOT / "verifiers" / "__init__.py"


def test_exact_answer_is_known_by_name():
    assert registry.load("exact-answer") is ExactAnswer
    assert "exact-answer" in registry.names()
    made = registry.create("exact-answer", {"extract": "boxed"})
    assert made.digest() == ExactAnswer(extract="boxed").digest()
    with pytest.raises(InvalidConfig):
        registry.create("exact-answer", {"extract": "nowhere"})


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(UnknownVerifier, match=r"no verifier is called 'exact'; known: exact-answer"):
        registry.load("exact")


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a distribution with one module and the given entry points, as a package index would have."""

    def install(name: str, entries: str, module: str = "") -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[posttrain.verifiers]\n{entries}\n")
        (tmp_path / f"{name}.py").write_text(module)

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


def test_a_third_party_s_verifier_is_found(distribution):
    distribution("always_yes", "always-yes = always_yes:AlwaysYes",
                 "class AlwaysYes:\n    def __init__(self, word='yes'):\n        self.word = word\n")  # fmt: skip
    assert registry.load("always-yes")(word="no").word == "no"
    assert registry.names() == ["always-yes", "exact-answer"]
    with pytest.raises(InputError, match="AlwaysYes does not follow"):
        registry.create("always-yes", {})


def test_nothing_can_take_a_first_party_name(distribution):
    distribution("squatter", "exact-answer = squatter:Paid", "class Paid: ...")
    assert registry.load("exact-answer") is ExactAnswer


def test_broken_declarations_say_what_is_wrong(distribution):
    distribution(
        "one", "twice = one:A\nextra = one_needs_sympy:A [verify]\nabsent = nowhere_at_all:A\nempty = one:B", "A = 1"
    )
    distribution("two", "twice = two:A", "A = 2")
    with pytest.raises(InputError, match=r"'twice' is declared more than once \(one:A, two:A\)"):
        registry.load("twice")
    with pytest.raises(MissingExtra, match=r"posttrain\[verify\]"):
        registry.load("extra")
    with pytest.raises(InputError, match="needs the module 'nowhere_at_all'"):
        registry.load("absent")
    with pytest.raises(InputError, match="cannot be loaded"):
        registry.load("empty")


def test_the_registry_imports_no_verifier_before_it_is_asked():
    code = "import sys, verifiers.registry; assert 'verifiers.answers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
