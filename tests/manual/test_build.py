"""The manual builds without a warning, asks nothing of the network, and leaves nothing of the code undocumented."""

from __future__ import annotations

import dataclasses
import html
import re
from pathlib import Path
from urllib.parse import unquote

import typer.main

from tests.manual.blocks import DOCS, ROOT

LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed)\b[^>]*?\ssrc=["']?(?P<src>[^"'\s>]+)"""
    r"""|<link\b(?P<link>[^>]*)>|url\(["']?(?P<url>[^"')]+)|@import ["'](?P<rule>[^"']+)"""
)


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_every_page_is_built_under_a_name_that_a_disk_can_open(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        built = page.relative_to(DOCS).with_suffix(".html")
        built = built.with_name("index.html") if page.name == "README.md" else built
        assert (site / built).is_file(), built


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    seen = 0
    for file in [*site.rglob("*.html"), *(site / "assets").rglob("*.css")]:
        for found in LOADED.finditer(file.read_text(encoding="utf-8")):
            link = found["link"] or ""
            if link and not re.search(r'rel="?(?:stylesheet|icon|preload|preconnect|modulepreload)', link):
                continue
            target = found["src"] or found["url"] or found["rule"] or link
            assert not re.search(r"(?:^|[\"'=])(?:https?:)?//", target), f"{file.relative_to(site)}: {found[0]}"
            seen += 1
    assert seen > 100


def test_every_link_and_picture_of_a_page_is_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links count from wherever it is shown
            continue
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:|//", target):
                assert (page.parent / unquote(html.unescape(target))).exists(), f"{page.relative_to(site)}: {target}"


def test_result_files_come_with_the_page_that_quotes_them(site: Path) -> None:
    assert len(list((site / "files/results").rglob("result.json"))) > 5


def test_every_command_and_option_is_on_its_page(site: Path) -> None:
    from scale_cl.cli.main import app

    text = " ".join(text_of(site / "reference/commands.html").split())

    def check(command: object, name: str) -> None:
        inner = getattr(command, "commands", None)
        if inner is not None:
            for sub, part in inner.items():
                check(part, f"{name} {sub}")
            return
        section = text.partition(f" {name}¶")[2].partition("¶")[0]
        assert section, name
        for parameter in command.params:  # type: ignore[attr-defined]
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in section or option == "--help", f"{name} {option}"
            said = " ".join((parameter.help or "").replace("`", "").split())
            assert said in section or parameter.name == "help", f"{name}: {parameter.name}"

    check(typer.main.get_command(app), "scale-cl")


def test_every_setting_is_on_its_page_with_its_default(site: Path) -> None:
    from scale_cl.learners import registry
    from scale_cl.training.config import RunSettings, StreamSettings

    page = (site / "reference/settings.html").read_text(encoding="utf-8")
    text = " ".join(text_of(site / "reference/settings.html").split())
    kinds = [registry.config_class(name) for name in registry.names()]
    for kind in [StreamSettings, RunSettings, *kinds]:
        for field in dataclasses.fields(kind):
            default = "none" if field.default is None else str(field.default)
            default = default.lower() if isinstance(field.default, bool) else default
            row = f"<td><code>{field.name}</code></td>\n<td><code>{html.escape(default, quote=False)}</code></td>"
            assert row in page, f"{kind.__name__}.{field.name}"
            assert " ".join(field.metadata["doc"].replace("`", "").split()) in text, field.name
    for name in registry.names():
        assert f'id="{name}"' in page


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import scale_cl

    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "reference/api").glob("*.html"))
    described = {name.rpartition(".")[2] for name in re.findall(r'<h[2-4] id="(scale_cl\.[\w.]+)"', pages)}
    modules = {"learners", "metrics", "streams", "__version__"}
    assert set(scale_cl.__all__) - modules - described == set()


def test_no_name_of_the_machine_or_of_a_registry_stands_in_the_manual(site: Path) -> None:
    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.py"), ROOT / "mkdocs.yml", *site.glob("*.html")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert str(ROOT) not in text, page
        assert str(Path.home()) not in text, page
