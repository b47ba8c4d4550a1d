"""Which text of a completion is its program."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading import extract_code

CASES = {
    "tagged": ("x\n```python\nprint(1)\n```\ny", "print(1)"),
    "untagged": ("```\nprint(1)\n```", "print(1)"),
    "any tag": ("```{.py title='a b'}\nprint(1)\n```", "print(1)"),
    "space before the tag": ("``` python \nprint(1)\n```  ", "print(1)"),
    "the last block counts": ("```python\n1\n```\n```python\n2\n```", "2"),
    "a later block of another language": ("```python\n1\n```\n```text\n2\n```", "1"),
    "a later untagged block": ("```python\n1\n```\nSample run:\n```\n3\n```", "1"),
    "an untagged block before one of another language": ("```\n1\n```\n```bash\npython a.py\n```", "1"),
    "another language alone": ("```cpp\nint x;\n```\n```c\nint y;\n```", "int y;"),
    "thinking that is cut": ("<think>\n```python\n1\n```\n", None),
    "no block after the thinking": ("<think>\n```python\n1\n```\n</think>\nIt prints 1.", None),
    "thinking that the prompt opened": ("```python\n1\n```\n</think>\n```python\n2\n```", "2"),
    "tags in and after a program": ("```python\nprint('</think>')\n```\nI ended with </think>.", "print('</think>')"),
    "thinking that begins again and is cut": ("<think>\nx</think>\n<think>\n```\n1\n```", None),
    "a fence at the margin of a docstring": (
        '```python\n"""\n```\nf(1)\n```\n"""\ndef f(n): 1\n```',
        '"""\n```\nf(1)\n```\n"""\ndef f(n): 1',
    ),
    "a fence with a language in a string": (
        "```python\ns = '''\n```json\n{}\n```\n'''\n```",
        "s = '''\n```json\n{}\n```\n'''",
    ),
    "a string that never ends": ("```python\ns = '''\n```\nSee ~~~.", "s = '''"),
    "triple quotes in a comment and in a string": (
        "```python\n# '''\nx = '\"\"\"'\n```\n```\n```",
        "# '''\nx = '\"\"\"'",
    ),
    "quoted": ("> ```python\n> if 1:\n>     x\n> ```\n", "if 1:\n    x"),
    "quoted, but empty": ("> ```\n>\n> ```\n\n```python\n1\n```", "1"),
    "quoted comments alone": ("```python\n1\n```\n> ```python\n> # x\n> ```", "1"),
    "a quotation that ends with its block open": ("> ```python\n> x\n\n```\n1\n```", "1"),
    "a console": ("```python\n1\n```\n```pycon\n>>> 1\n```\n```python-repl\n>>> 2\n```", "1"),
    "a version of Python": ("```python3.11\n1\n```\n```text\n2\n```", "1"),
    "many fences in a string": (
        "```\ns = '''\n" + "```\nx\n```\n" * 40 + "'''\n```",
        "s = '''\n" + "```\nx\n```\n" * 40 + "'''",
    ),
    "opened behind words": ("The code: ```python\nx\n```", "x"),
    "opened behind a list marker": ("1. ```python\n   if 1:\n       x\n   ```", "if 1:\n    x"),
    "a fence in a sentence": ("End it with ``` as usual.\n```python\nx\n```", "x"),
    "no block": ("print(1)", None),
    "nothing": ("", None),
    "inline": ("use ```print(1)``` or `x`", None),
    "unclosed": ("```python\nprint(1)", None),
    "unclosed after a closed one": ("```python\n1\n```\nbetter:\n```python\n2", "1"),
    "opened twice": ("```\n```python\nprint(1)\n```", "print(1)"),
    "left open, then a new block": ("```python\n1\n\n```python\n2\n```", "2"),
    "closed at the end of a line": ("```python\nprint(1)```\nand so on", "print(1)"),
    "empty": ("```python\n```", None),
    "crlf": ("```python\r\nif 1:\r\n    x\r\n```\r\n", "if 1:\n    x"),
    "tildes": ("~~~python\nprint(1)\n~~~", "print(1)"),
    "indented in a list": ("1. code:\n   ```python\n   if 1:\n       x\n   ```", "if 1:\n    x"),
    "longer fence around fences": ("````python\n'''\n```\n'''\n````", "'''\n```\n'''"),
    "fence in an indented docstring": (
        '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```',
        'def f():\n    """\n    ```\n    f()\n    ```\n    """',
    ),
    "answer wrapped in markdown": ("```markdown\nHere:\n```python\nprint(1)\n```\n```", "print(1)"),
    "blank lines around": ("```python\n\n\n  x = 1\n\n\n```", "  x = 1"),
    "four backticks close three": ("```\nx\n````", "x"),
    "three backticks do not close four": ("````\nx\n```", None),
    "thinking first": ("<think>\n```python\n1\n```\n</think>\n```python\n2\n```", "2"),
    "lone surrogate and nul": ("```\nx\ud800\x00\n```", "x\ud800\x00"),
    "a tag after the closing fence": ("<answer>\n```python\n1\n```</answer>", "1"),
    "words with inline code after the closing fence": ("```python\n1\n``` Here `x` is used.", "1"),
    "inline code of three backticks inside a block": ("```python\n1\n```x```\n2\n```", "1\n```x```\n2"),
    "words after the closing fence": ("```python\n1\n``` That is all.\nReally.", "1"),
    "a sentence at the closing fence": ("```python\n1\n```This is right.\n\nUsage:\n```\n5\n```", "1"),
    "a tag after a fence at the end of a line": ("<answer>```python\nprint(1)```</answer>", "print(1)"),
    "a tag before the opening fence": ("<answer>```python\n1\n```\n</answer>", "1"),
    "quote marks inside a block": ("```python\n'''\n> ```\n'''\n```", "'''\n> ```\n'''"),
    "comments alone": ("```python\n# nothing\n\n```", None),
    "nothing visible": ("```python\n\u200b\n\ufeff # x\n```", None),
    "no Python at all": ("```\nis this Python?\n```", "is this Python?"),
}


@pytest.mark.parametrize(("text", "code"), CASES.values(), ids=CASES.keys())
def test_extraction(text, code):
    assert extract_code(text) == code


pieces = st.sampled_from(
    ["```", "````", "~~~", "python", "\n", "\r\n", " ", "\t", "x = 1", "`", '"""', "markdown", "\x00", "\u2028"]
)


@given(st.lists(pieces, max_size=40).map("".join) | st.text())
def test_never_raises_and_what_is_extracted_is_extracted_again(text):
    code = extract_code(text)
    if code is None:
        return
    assert code.strip()
    assert code == code.strip("\n")
    fence = "`" * 50
    if any(line.lstrip(" \t").startswith("```") and line.strip(" \t`") for line in code.split("\n")):
        return  # inside a longer fence this line opens a block of its own
    assert extract_code(f"before\n{fence}python\n{code}\n{fence}\nafter") == code


@given(
    st.text(st.characters(exclude_characters="`~\r")).filter(str.strip), st.text(st.characters(exclude_characters="`~"))
)
def test_code_without_fences_survives_any_prose_around_it(code, prose):
    body = code.strip("\n")
    expected = extract_code(f"```\n{body}\n```")
    assert extract_code(f"{prose}\n```python\n{body}\n```\n{prose}") == expected
