"""Prompt templates: the messages that put a problem to a policy. `prompt=` names a template;
`system_prompt=` is a system message before it. Your own template is a function
`package.module:function` from a `ProblemView` to messages.

The template `livecodebench` is that of lcb_runner/prompts/code_generation.py for generic models. A
template gets a problem's public view, so no hidden test can reach a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from code_rl.data.sources import CODE_R1_SYSTEM, COMPLETE, REQUEST, code_r1_question
from code_rl.grading import ProblemView, SequenceTest, StdinTest, TestCase
from code_rl.grading.values import dumps
from code_rl.policy.renderers.base import Message
from code_rl.util.registry import attribute_errors_to, find

LCB_SYSTEM_MESSAGE_GENERIC = (
    "You are an expert Python programmer. You will be given a question (problem specification) and "
    "will generate a correct Python program that matches the specification and passes all tests."
)
LCB_FORMATTING_WITH_STARTER_CODE = (
    "You will use the following starter code to write the solution to the problem and enclose your "
    "code within delimiters."
)
LCB_FORMATTING_WITHOUT_STARTER_CODE = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly "
    "test on the sample inputs). Enclose your code within delimiters as follows. Ensure that when "
    "the python program runs, it reads the inputs, runs the algorithm and writes output to STDOUT."
)

OPENING = LCB_SYSTEM_MESSAGE_GENERIC + "\n\n"
STARTER_FORMAT = f"### Format: {LCB_FORMATTING_WITH_STARTER_CODE}\n```python\n"
STDIN_FORMAT = (
    f"### Format: {LCB_FORMATTING_WITHOUT_STARTER_CODE}\n```python\n# YOUR CODE HERE\n```\n\n"
)
CLOSING = "### Answer: (use the provided format with backticks)\n\n"


PromptTemplate = Callable[[ProblemView], list[Message]]


def livecodebench(problem: ProblemView) -> list[Message]:
    """Return one user message: statement and starter code inside LiveCodeBench's instructions."""
    return [{"role": "user", "content": build_prompt(problem)}]


def plain(problem: ProblemView) -> list[Message]:
    """Return one user message: the statement, followed by the starter code, if any, in a fenced
    block."""
    starter = problem.starter_code
    starter = f"\n\n```{problem.language_names[1]}\n{starter}\n```" if starter else ""
    return [{"role": "user", "content": problem.statement + starter}]


def code_r1(problem: ProblemView) -> list[Message]:
    """Return the prompt of ganler/code-r1-12k: a system message asks for `<think>` and `<answer>`,
    the user message for code."""
    question = code_r1_question(problem.statement, problem.starter_code)
    return [{"role": "system", "content": CODE_R1_SYSTEM}, {"role": "user", "content": question}]


PROMPTS: Mapping[str, PromptTemplate] = {
    "livecodebench": livecodebench,
    "plain": plain,
    "code-r1": code_r1,
}


def get_prompt_template(
    prompt: str | None = None, system_prompt: str | None = None
) -> PromptTemplate:
    """Return the template called `prompt` (None: livecodebench), or the function
    `package.module:function`, with `system_prompt` as its system message (None: its own, empty:
    none).

    Raises ConfigError for an unknown name. The template raises ConfigError if the function fails or
    does not return messages.
    """
    name = prompt or "livecodebench"
    found = find("prompt", name, PROMPTS)

    def worded(problem: ProblemView) -> list[Message]:
        """Return the checked messages of the template, with the system message of the setting.
        Raises ConfigError that names the template."""
        with attribute_errors_to("prompt", name):
            given = found(problem)
            if not isinstance(given, list | tuple):
                raise TypeError(f"it gave {given!r:.80}; a list of messages is wanted: {_MESSAGE}")
            return with_system([check_message(message) for message in given], system_prompt)

    return worded


def with_system(messages: list[Message], system_prompt: str | None) -> list[Message]:
    """Return the conversation with this system message instead of its own, at its beginning. An
    empty one removes it; None keeps it. `messages` is not changed."""
    if system_prompt is None:
        return messages
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": system_prompt}, *others] if system_prompt else others


def check_message(message: Message) -> Message:
    """Return the message itself if it is valid: role, content and perhaps reasoning_content, all
    texts. Raises TypeError for a malformed one, and UnicodeEncodeError for a lone surrogate in its
    text. The role's name is not checked."""
    told = message if isinstance(message, Mapping) else {}
    if told.keys() - {"reasoning_content"} != {"role", "content"} or not all(
        isinstance(each, str) for each in told.values()
    ):
        raise TypeError(
            f"{message!r:.80} is no message with role and content; a list of messages is wanted: "
            f"{_MESSAGE}"
        )
    "".join(map(str, told.values())).encode()
    return message


_MESSAGE = '[{"role": "user", "content": TEXT}]'


def fetch_live_code_bench_system_prompt(prompt: str, starter_code: str | None = None) -> str:
    """Wrap a problem statement in LiveCodeBench's instructions, for stdin or (with starter code)
    for a function."""
    return build_prompt(ProblemView("", prompt, starter_code, None, ()))


def build_prompt(view: ProblemView) -> str:
    """Return the text of the user message for `view`. For Python it is LiveCodeBench's own text, so
    it must not change; for another language its name takes the place of Python. Raises ConfigError
    for an unknown language."""

    def in_language(text: str) -> str:
        """Return a part of LiveCodeBench's text with the language's name and fence in place of
        Python's."""
        if view.language == "python":
            return text
        title, fence = view.language_names
        text = text.replace("```python", f"```{fence}").replace("# YOUR", "YOUR")
        return text.replace("Python", title).replace("python", title)

    starter = f"{in_language(STARTER_FORMAT)}{view.starter_code}\n```\n\n"
    body = starter if view.starter_code else in_language(STDIN_FORMAT)
    return f"{in_language(OPENING)}{view.statement}\n{body}{CLOSING}"


STATEMENT_FIELDS = (
    "question",
    "prompt",
    "problem",
    "question_content",
    "description",
    "statement",
    "text",
)
"""Columns that may hold a row's statement; the first that is not blank is used."""


def build_question(example: Mapping[str, Any]) -> str | None:
    """Return the prompt for a row with a statement in one of `STATEMENT_FIELDS` and optional
    `starter_code`, or None for a row without a statement.

    In LeetCodeDataset and HumanEval rows the column `prompt` is code; other columns identify them.
    """
    statement, starter = _code_rows(example)
    for name in STATEMENT_FIELDS if statement is None else ():
        statement = statement or _text(example, name)
    if statement is None:
        return None
    return fetch_live_code_bench_system_prompt(statement, starter or _text(example, "starter_code"))


def _code_rows(example: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the statement and the starter code of a row whose `prompt` column is code, else (None,
    None)."""
    entry = _text(example, "entry_point")
    if entry is None:
        return None, None
    if _text(example, "problem_description"):
        return _text(example, "problem_description"), _text(example, "starter_code")
    query = _text(example, "query")
    if query is not None and REQUEST in query:
        meta = example.get("meta")
        starter = _text(meta, "lang_code") if isinstance(meta, Mapping) else None
        return query.partition(REQUEST)[0].strip(), starter
    prompt = _text(example, "prompt")
    if prompt is not None and f"def {entry}(" in prompt:
        return COMPLETE, prompt.strip("\n")
    return None, None


def _text(example: Mapping[str, Any], name: str) -> str | None:
    """Return a column that holds text, or None if it is missing, blank or of another type."""
    value = example.get(name)
    return value if isinstance(value, str) and value.strip() else None


def shown_test(test: TestCase, fn_name: str | None, most: int) -> tuple[str, str]:
    """Return a test's input and expected output as text, each cut to `most` characters. Calls are
    written as `name(arguments)` with JSON values, expected exceptions as `raises NAME`. `fn_name`
    is the problem's."""
    if isinstance(test, StdinTest):
        given, expected = test.input, test.expected
    elif isinstance(test, SequenceTest):
        given = "; ".join(f"{name}({', '.join(map(dumps, args))})" for name, args in test.calls)
        expected = dumps(list(test.expected))
    else:
        named = [f"{name}={dumps(value)}" for name, value in test.kwargs.items()]
        given = f"{test.fn_name or fn_name}({', '.join([*map(dumps, test.args), *named])})"
        expected = dumps(test.expected) if test.raises is None else f"raises {test.raises}"
    # A lone surrogate has no place in a prompt or a page.
    given, expected = (text[:most].encode(errors="replace").decode() for text in (given, expected))
    return given, expected
