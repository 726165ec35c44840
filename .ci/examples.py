"""Runs the Python examples of Markdown pages, and compares what they print: examples.py PAGE ..."""

import contextlib
import io
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
DOWNLOADS = "all-MiniLM-L6-v2"  # examples that name this model are skipped


def close(shown: str, printed: str) -> bool:
    """Returns whether two words are equal, or numbers that rounding explains."""
    if re.fullmatch(r"\d+\.?\d*", shown) and re.fullmatch(r"\d+\.?\d*", printed):
        return abs(float(shown) - float(printed)) <= 0.02 + 0.05 * float(shown)
    return shown == printed


def run(page: Path) -> int:
    """Runs a page's examples in order, in one namespace; returns their number."""
    names, count = {}, 0
    for code, shown in BLOCK.findall(page.read_text(encoding="utf-8")):
        if DOWNLOADS in code:
            continue
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, str(page), "exec"), names)
        words = [re.findall(r"\d+\.?\d*|[^\d\s]+", text) for text in (shown, output.getvalue())]
        if not (len(words[0]) == len(words[1]) and all(map(close, *words))):
            raise AssertionError(f"{page}: shown\n{shown}\nprinted\n{output.getvalue()}")
        count += 1
    return count


if __name__ == "__main__":
    for name in sys.argv[1:]:
        count = run(Path(name))
        print(f"{name}: {count} examples")
        assert count
