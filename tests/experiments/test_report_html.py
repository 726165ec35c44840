"""report.html: one file that needs no other."""

import itertools
import json
import re
import shutil
import subprocess
from collections import defaultdict
from html.parser import HTMLParser

import pandas as pd
import pytest

from experiments import gaussian, report
from experiments.memory import certificates, language, recovery
from experiments.noise_stability import encoder, influence, tail_mass
from experiments.pages.__main__ import RESULTS

NASTY = '</script><b title="x">\'&'
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"


class Parser(HTMLParser):
    """A page's data, and its attributes by name."""

    def __init__(self, text):
        super().__init__()
        self.attributes = defaultdict(list)
        self.feed(text)
        self.data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            self.attributes[name].append(value)


def published_page(module, suite, run, folder):
    frame = pd.read_csv(RESULTS / "data" / f"{suite}.csv")
    frame[frame.run == (run or frame.run[0])].to_csv(folder / "results.csv", index=False)
    return module.page(folder)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The page of seven published tasks, its data and its elements."""
    folder = tmp_path_factory.mktemp("run")
    page = published_page(gaussian, "robustness", "seven_tasks", folder)
    text = report.html(page, folder)
    return page, text, Parser(text)


@pytest.fixture
def lines():
    """Two models, one named to break out of a page, at two levels of two kinds of noise."""
    rows = itertools.product(("kind a", "kind b"), ("clean", "σ 1"), ("robertha", NASTY))
    table = pd.DataFrame(rows, columns=["noise", "level", "model"]).assign(mean=60.25)
    return table.assign(low=59.25, high=61.25, paper=table.model.map({"robertha": 67.25}))


def page_of(table, pictures=()):
    drawn = {"x": "level", "hue": "model", "col": "noise"}
    return report.Page(
        title=NASTY,
        pictures={name: report.facets(NASTY, table, **drawn) for name in pictures},
        tables=[report.Table(["", NASTY], [[NASTY, "**+1.0**"]], NASTY)],
        explorer=report.Explorer(table, x="level", hue="model", menus={"noise": "Noise"}),
    )


def test_page_is_one_well_formed_file_of_moderate_size(published):
    _, text, parser = published
    assert len(text.encode()) < 300_000
    assert not parser.attributes["src"]
    assert not {link for link in parser.attributes["href"] if not link.startswith("#")}
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)


@pytest.mark.parametrize(
    ("module", "suite"),
    [
        (certificates, "memory-certificates"),
        (language, "memory-language"),
        (recovery, "memory-recovery"),
        (encoder, "encoder-stability"),
        (influence, "influence"),
        (tail_mass, "tail-mass"),
    ],
)
def test_a_page_of_a_published_run_has_tables_and_pictures(module, suite, tmp_path):
    page = published_page(module, suite, None, tmp_path)
    assert page.tables and all(table.rows for table in page.tables)
    assert page.pictures and all(each.figure.axes for each in page.pictures.values())


def test_chart_has_the_rows_of_the_table(published):
    page, _, parser = published
    chart = parser.data
    names = [*chart["menus"], chart["x"], chart["hue"]]
    rows = pd.DataFrame(chart["rows"], columns=[*names, *chart["numbers"]])
    for name in names:
        rows[name] = rows[name].map(dict(enumerate(chart["options"][name])))
    table = page.explorer.table[list(rows)].reset_index(drop=True)
    table["panel"] = table.panel.str.replace("\n", " ")
    table = table.astype(rows.dtypes)
    pd.testing.assert_frame_equal(rows, table, atol=0.001, rtol=0)


def test_no_name_leaves_its_place_and_ids_of_pictures_do_not_clash(lines, tmp_path):
    text = report.html(page_of(lines, ["one", "two"]), tmp_path)
    parser = Parser(text)
    assert NASTY not in text and "<b>+1.0</b>" in text
    assert text.count("</script>") == 2
    assert parser.data["options"]["model"] == ["robertha", NASTY]
    assert NASTY in parser.attributes["value"]
    ids = parser.attributes["id"]
    assert len(ids) == len({*ids})
    links = (parser.attributes[name] for name in ("href", "xlink:href", "clip-path"))
    used = re.findall(r"#([\w-]+)", " ".join(itertools.chain(*links)))
    assert used and {*used} <= {*ids}


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_address_chooses_what_a_browser_shows(lines, tmp_path):
    lines.loc[(lines.noise == "kind b") & (lines.level == "σ 1"), "mean"] = 61.75
    lines.loc[lines.model == NASTY, "low"] = None
    (tmp_path / "report.html").write_text(report.html(page_of(lines), tmp_path), encoding="utf-8")
    address = f"{(tmp_path / 'report.html').as_uri()}#noise=kind+b&level=1&model=robertha"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    shown = subprocess.run(
        [CHROMIUM, *FLAGS.split(), profile, "--dump-dom", address],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    table = shown[shown.index('<table id="models">') : shown.index("</table>")]
    said = " ".join(re.sub(r"<svg.*?</svg>|<[^>]+>", " ", table, flags=re.DOTALL).split())
    assert "kind b · σ 1" in said and "robertha 61.8 [59.3, 61.3] 67.3" in said
    assert "61.8 [n/a]" in said
    assert shown.count('class="series off"') == 1
