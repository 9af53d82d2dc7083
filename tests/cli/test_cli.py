from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from dyspec_edge.cli import main, model_choice, options
from dyspec_edge.cli.commands.generation import complete
from dyspec_edge.cli.syntax import ALL_LAYERS
from dyspec_edge.decode.sampling import SamplingParams
from dyspec_edge.engine import Engine, EngineConfig
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.files import stores
from tests.fake_engine import NOTICES, FakeEngine

Run = Callable[..., Result]
PROGRAM = [sys.executable, "-m", "tests.fake_engine"]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    loaded: list[FakeEngine] = []

    def load(config: EngineConfig, *, on_progress: Any = None) -> FakeEngine:
        loaded.append(FakeEngine.load(config, on_progress=on_progress))
        return loaded[-1]

    monkeypatch.setattr(Engine, "load", load)
    return loaded


@pytest.fixture
def run(engines: list[FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    assert engines == []
    monkeypatch.setenv("DYSPEC_EDGE_CACHE", str(tmp_path / "cache"))

    def invoke(*args: str, **extra: Any) -> Result:
        return CliRunner().invoke(main.cli, list(args), prog_name="dyspec-edge", **extra)

    return invoke


def lines(text: str) -> list[str]:
    return text.splitlines()


# complete


def test_complete_writes_text_to_stdout_and_figures_to_stderr(run: Run) -> None:
    result = run("complete", "-m", "x.gguf", "say one two")
    assert result.exit_code == 0
    assert result.stdout == "one two"
    assert lines(result.stderr)[:-1] == list(NOTICES)
    figures = lines(result.stderr)[-1]
    for figure in ("15.0 tok/s", "1.50x plain 10.0", "2.50 tokens/pass", "38% accepted",
                   "first token 0.25 s", "target 60% draft 30% other 10%",
                   "prompt 2 new + 2 cached", "context 6/64", "seed 12345"):  # fmt: skip
        assert figure in figures


def test_complete_json_is_one_document(run: Run) -> None:
    result = run("complete", "-m", "x.gguf", "--json", "say één 👍")
    document = json.loads(result.stdout)
    assert set(document) == {"text", "tokens", "finish_reason", "stats"}
    assert (document["text"], document["tokens"]) == ("één 👍", [1, 2])
    assert document["finish_reason"] == "stop"
    assert document["stats"]["accept_length_histogram"] == [0, 1, 1]
    assert result.stdout.count("\n") == 1


def test_prompt_from_file_and_stdin_loses_one_newline(
    run: Run, engines: list[FakeEngine], tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"say a\n\n")
    run("complete", "-m", "x.gguf", "-f", str(file))
    run("complete", "-m", "x.gguf", input="say b\n")
    run("complete", "-m", "x.gguf", "-f", "-", input=b"say c\r\n")
    assert [engine.prompts[0][0]["content"] for engine in engines] == ["say a\n", "say b", "say c"]


def test_options_reach_the_engine(run: Run, engines: list[FakeEngine], tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    result = run(
        "complete", "-m", "t.gguf", "-md", "d.gguf", "-c", "128", "-cd", "0", "-t", "3",
        "-ngl", "all", "-ngld", "7", "--rpc", "a:1,b:2", "--require-gpu",
        "-fa", "off", "-ctk", "q8_0", "-ctv", "f32",
        "--lora", "a.gguf", "--lora", "b.gguf", "--no-mmap", "--mlock", "--policy", "dyspec:16",
        "--verify", "residual", "--draft-temp", "0.6", "--chat-template", str(template),
        "--memory-limit", "1.5G", "--stream", "on", "--device-sampling", "on",
        "-ctkd", "f16", "-ctvd", "bf16", "--ignore-eos",
        "--grammar", "root ::= [a-z]",
        "--chat-template-kwargs", '{"enable_thinking": true, "x": [1]}', "--reasoning", "off",
        "--temp", "0", "--top-k", "5", "--top-p", "0.5", "--min-p", "0.1", "--typical", "0.9",
        "--repeat-penalty", "1.1", "--repeat-last-n", "32", "--frequency-penalty", "-0.5",
        "--presence-penalty", "0.25", "--dry-multiplier", "0.8", "--dry-base", "2",
        "--dry-allowed-length", "3", "--logit-bias", "15043+1.5", "--logit-bias", "7-inf",
        "--seed", "42", "-n", "9", "--stop", "END", "--stop", "\n", "-sys", "be brief", "hello",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert engines[0].config == EngineConfig(
        model=Path("t.gguf"), draft=Path("d.gguf"), num_ctx=128, num_ctx_draft=0, num_threads=3,
        num_gpu_layers=ALL_LAYERS, num_gpu_layers_draft=7, rpc=("a:1", "b:2"), require_gpu=True,
        flash_attn="off",
        cache_type_k="q8_0", cache_type_v="f32", lora=(Path("a.gguf"), Path("b.gguf")),
        memory_limit=3 << 29, stream="on",
        use_mmap=False, use_mlock=True, policy="dyspec:16", verify="residual", device_sampling="on",
        draft_temperature=0.6, chat_template="{{ messages }}",
        cache_type_k_draft="f16", cache_type_v_draft="bf16",
        template_kwargs={"enable_thinking": True, "x": [1]},
    )  # fmt: skip
    sampling = SamplingParams(
        temperature=0, top_k=5, top_p=0.5, min_p=0.1, typical=0.9, repeat_penalty=1.1,
        repeat_last_n=32, frequency_penalty=-0.5, presence_penalty=0.25, dry_multiplier=0.8,
        dry_base=2, dry_allowed_length=3, logit_bias=((15043, 1.5), (7, float("-inf"))), seed=42,
        ignore_eos=True, grammar="root ::= [a-z]",
    )  # fmt: skip
    call = {"sampling": sampling, "max_tokens": 9, "stop": ("END", "\n"), "raw": False}
    assert engines[0].calls == [call]
    assert engines[0].prompts[0] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
    ]
    assert engines[0].closed


def test_newer_spellings_of_llama_cpp(run: Run, engines: list[FakeEngine]) -> None:
    result = run(
        "complete", "-m", "t.gguf", "--spec-draft-model", "d.gguf", "--spec-draft-ngl", "3",
        "--spec-draft-type-k", "f32", "--spec-draft-type-v", "f16", "--spec-draft-n-max", "6",
        "--spec-draft-p-min", "0.5", "-rea", "on", "-lm", "mmap+mlock", "-r", "X", "--stop", "Y",
        "--chat-template-file", "chatml", "hello",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert engines[0].config == EngineConfig(
        model=Path("t.gguf"), draft=Path("d.gguf"), num_gpu_layers_draft=3, policy="chain:6:0.5",
        cache_type_k_draft="f32", cache_type_v_draft="f16", use_mlock=True,
        template_kwargs={"enable_thinking": True}, chat_template="chatml",
    )  # fmt: skip
    assert engines[0].calls[0]["stop"] == ("X", "Y")


@pytest.mark.parametrize(
    ("mode", "mapped", "locked"),
    [("auto", True, False), ("none", False, False), ("mmap", True, False), ("mlock", False, True)],
)
def test_load_modes(
    run: Run, engines: list[FakeEngine], mode: str, mapped: bool, locked: bool
) -> None:
    run("complete", "-m", "t.gguf", "--load-mode", mode, "hello")
    assert (engines[0].config.use_mmap, engines[0].config.use_mlock) == (mapped, locked)


def test_escapes_are_read_where_they_are_asked_for(
    run: Run, engines: list[FakeEngine], tmp_path: Path
) -> None:
    typed = r"say a\nb\t\"\\n\xc3\xa9\q"
    file = tmp_path / "code.c"
    file.write_text(r"puts(\"\n\");")
    args = ["complete", "-m", "x.gguf", typed, "-f", str(file), "-r", r"\n\n", "-sys", r"a\nb"]
    run(*args)
    run(*args, "-e")
    run(*args, "-e", "--no-escape")
    plain, escaped, undone = engines
    assert plain.prompts == undone.prompts
    assert plain.prompts[0][1]["content"] == typed + "\n\n" + r"puts(\"\n\");"
    system, user = (message["content"] for message in escaped.prompts[0])
    assert user == 'say a\nb\t"\\né\\q' + "\n\n" + r"puts(\"\n\");"
    assert (system, escaped.calls[0]["stop"]) == ("a\nb", ("\n\n",))
    assert plain.calls[0]["stop"] == (r"\n\n",)


def test_n_0_reads_the_prompt_only(run: Run, engines: list[FakeEngine]) -> None:
    result = run("complete", "-m", "x.gguf", "-n", "0", "say a")
    assert (result.exit_code, result.stdout) == (0, "")
    assert engines[0].calls[0]["max_tokens"] == 0
    result = run("chat", "-m", "x.gguf", "-n", "0", input="say a\n")
    assert (result.exit_code, "-n 0 only reads a prompt" in result.stderr) == (2, True)


def test_stop_strings_of_a_chat(run: Run, engines: list[FakeEngine]) -> None:
    run("chat", "-m", "x.gguf", "-e", "--stop", r"END\n", "-r", "User:", input="say a\nsay b\n")
    assert [call["stop"] for call in engines[0].calls] == [("END\n", "User:")] * 2


def test_hub_options_are_huggingface_hubs_own_variables(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # both are put back after the test
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "7")
    run("complete", "-m", "x.gguf", "say a")
    assert (os.environ["HF_HUB_OFFLINE"], os.environ["HF_HUB_ETAG_TIMEOUT"]) == ("0", "7")
    run("complete", "-m", "x.gguf", "--offline", "--hub-timeout", "30", "say a")
    assert (os.environ["HF_HUB_OFFLINE"], os.environ["HF_HUB_ETAG_TIMEOUT"]) == ("1", "30")
    result = run("complete", "-hf", "nobody/nothing-GGUF", "--offline", "say a")
    assert (result.exit_code, "--offline" in result.stderr) == (1, True), result.output


def test_the_hub_is_not_imported_before_offline_says_so() -> None:
    program = (
        "import sys, os\n"
        "from dyspec_edge.cli import main\n"
        "assert 'huggingface_hub' not in sys.modules\n"
        "try: main.cli(['pull', '--offline', 'smollm2-none'], prog_name='d')\n"
        "except SystemExit: pass\n"
        "from huggingface_hub import constants\n"
        "assert constants.HF_HUB_OFFLINE\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_defaults_are_those_of_the_engine(run: Run, engines: list[FakeEngine]) -> None:
    run("complete", "-m", "t.gguf", "hello", "--raw")
    assert engines[0].config == EngineConfig(model=Path("t.gguf"))
    assert engines[0].calls[0]["sampling"] == SamplingParams()
    assert engines[0].calls[0]["max_tokens"] == -1
    assert engines[0].calls[0]["raw"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-c", "-5", "x"], "-5 is not 0 or more"),
        (["-c", "many", "x"], "'many' is not a whole number"),
        (["-t", "0", "x"], "0 is not 1 or more"),
        (["-c", "99999999999", "x"], "99999999999 is more than 2147483647"),
        (["-n", "-2", "x"], "-2 is not -1 or more"),
        (["-ngl", "some", "x"], "'some' is not a number of layers, auto or all"),
        (["-ngl", "-1", "x"], "'-1' is not a number of layers, auto or all"),
        (["--temp", "hot", "x"], "'hot' is not a number"),
        (["--temp", "nan", "x"], "nan is not at least 0"),
        (["--temp", "-1", "x"], "-1 is not at least 0"),
        (["--top-p", "1.5", "x"], "1.5 is not between 0 and 1"),
        (["--repeat-penalty", "0", "x"], "0 is not above 0"),
        (["--frequency-penalty", "inf", "x"], "inf is not a finite number"),
        (["--logit-bias", "hello+1", "x"], "'hello+1' is not like 15043+1"),
        (["--logit-bias", "3+inf", "x"], "'3+inf' is not like 15043+1"),
        (["--seed", "18446744073709551616", "x"], "is more than 18446744073709551615"),
        (["-fa", "maybe", "x"], "'maybe' is not one of"),
        (["-ctk", "q3", "x"], "'q3' is not one of"),
        (["--verify", "hope", "x"], "'hope' is not one of"),
        (["--modle", "f", "x"], "--model"),
        (["--draft-tmp", "1", "x"], "--draft-temp"),
        (["-temp", "1", "x"], "--temp"),
        (["-mdd", "f", "x"], "-md"),
        (["-cxd", "f", "x"], "-cd"),
        (["x", "y"], "unexpected extra argument"),
        ([""], "the prompt is empty"),
        (["  \n"], "the prompt is empty"),
        (["--raw", ""], "the prompt is empty"),
        (["--raw", "-sys", "a", "x"], "--raw leaves no place"),
        (["x", "--chat-template", "alpaca"], "neither a file, nor one of chatml, gemma, llama3"),
        (["x", "--chat-template-kwargs", "[1]"], "'[1]' is not a JSON object"),
        (["x", "--chat-template-kwargs", "{a"], "'{a' is not JSON"),
        (["x", "--reasoning", "no"], "'no' is not one of"),
        (["x", "-ctkd", "q3"], "'q3' is not one of"),
        (["x", "-lm", "dio"], "'dio' is not one of"),
        (["x", "-lm", "mmap", "--mlock"], "leave those out"),
        (["x", "--memory-limit", "7T"], "like 700M or 12G"),
        (["x", "--memory-limit", "0"], "like 700M or 12G"),
        (["x", "--spec-draft-n-max", "4", "--policy", "none"], "leave them out beside --policy"),
        (["x", "--spec-type", "draft-simple"], "needs a draft's file; name one with -md FILE"),
        (["x", "--spec-type", "draft-eagle3"], "--spec-type draft-eagle3: that cannot draft here"),
        (["x", "--spec-type", "draft-mtp", "-md", "a"], "means -md mtp; leave the other draft"),
        (["x", "--spec-type", "none", "--policy", "priced"], "means --policy none"),
        (["x", "--spec-draft-p-min", "0.5"], "needs --spec-draft-n-max N"),
        (["x", "--hub-timeout", "0"], "0 is not 1 or more"),
        (["-e", r"a\xff"], "-e makes byte 0xff of"),
        (["x", "--pair", "qwen2.5-coder"], "-m and --pair each name a target"),
        (["x", "-md", "a", "-hfd", "b/c"], "-md and -hfd each name a draft"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(run: Run, args: list[str], message: str) -> None:
    result = run("complete", "-m", "x.gguf", *args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(lines(result.stderr)) == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_draft_without_target(run: Run) -> None:
    assert "a draft needs a target" in run("complete", "-md", "d.gguf", "x").stderr
    assert "brings its own draft" in run("chat", "--pair", "smollm2", "-md", "d").stderr


def test_unknown_pair_and_command_suggest_the_nearest(run: Run) -> None:
    for args in (["pull", "qwen-2.5-coder"], ["chat", "--pair", "qwen2.5-codr"]):
        result = run(*args)
        assert result.exit_code == 2
        assert "did you mean qwen2.5-coder?" in result.stderr
    result = run("chta")
    assert (result.exit_code, "Did you mean chat?" in result.stderr) == (2, True)


def test_no_model_names_the_pull_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "find", lambda _source: None)
    result = run("chat", input="hello\n")
    assert result.exit_code == 2
    assert "dyspec-edge pull qwen2.5-coder" in result.stderr


def test_no_model_takes_the_default_pair_that_is_there(
    run: Run, engines: list[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "find", lambda source: Path("/m") / source.name)
    assert run("complete", "say a").stdout == "a"
    assert engines[0].config.model.name == "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    assert engines[0].config.draft is not None


def test_errors_of_the_engine_are_one_line_and_exit_1(run: Run) -> None:
    result = run("complete", "-m", "x.gguf", "fail")
    assert result.exit_code == 1
    assert result.stdout == "so far "
    assert lines(result.stderr)[-1].startswith("error: llama.cpp could not evaluate")
    result = run("complete", "-m", "x.gguf", "-c", "3", "a b c d")
    assert result.exit_code == 1
    assert "the prompt has 5 tokens but the context holds 3" in result.stderr


def test_errors_at_load(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_config: EngineConfig, **_: Any) -> FakeEngine:
        raise raised

    monkeypatch.setattr(Engine, "load", load)
    raised: Exception = OptionError("unknown policy 'x'")
    assert run("chat", "-m", "x", input="").exit_code == 2
    raised = DyspecError("first line\nsecond line")
    result = run("chat", "-m", "x", input="")
    assert result.exit_code == 1
    assert result.stderr == "error: first line second line\n"


def test_a_traceback_needs_verbose(run: Run) -> None:
    result = run("complete", "-m", "x.gguf", "bug")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert "error: internal error: ZeroDivisionError: a mistake" in result.stderr
    assert "Traceback" in run("complete", "-m", "x.gguf", "bug", "--verbose").output


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_invalid_utf8_names_the_byte(run: Run, tmp_path: Path, source: str) -> None:
    data = b"abc \xff def"
    file = tmp_path / "p.txt"
    file.write_bytes(data)
    args = ["-f", str(file)] if source == "file" else []
    result = run("complete", "-m", "x.gguf", *args, input=data)
    assert result.exit_code == 1
    assert "is not UTF-8: byte 0xff at offset 4" in result.stderr
    assert len(lines(result.stderr)) == 1


def test_invalid_utf8_as_an_argument(run: Run) -> None:
    result = run("complete", "-m", "x.gguf", "abc\udcff")
    assert result.exit_code == 2
    assert "invalid UTF-8 at character 3" in result.stderr


def test_missing_prompt_file(run: Run) -> None:
    result = run("complete", "-m", "x.gguf", "-f", "nowhere.txt")
    assert result.exit_code == 1
    assert "cannot read the prompt file 'nowhere.txt': no such file" in result.stderr


# Interrupting


def interrupted(program: list[str], seen: str) -> tuple[int, bytes]:
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while seen.encode() not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        since = time.monotonic()
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - since < 1.0
        assert b"Traceback" not in err
    return process.returncode, out


@pytest.mark.parametrize("as_json", [False, True])
def test_sigint_ends_complete_with_130_and_what_there_is(as_json: bool) -> None:
    program = [*PROGRAM, "complete", "-m", "x.gguf", "slow", *(["--json"] if as_json else [])]
    code, out = interrupted(program, NOTICES[-1])
    assert code == 130
    if as_json:
        document = json.loads(out)
        assert document["finish_reason"] == "cancelled"
        assert document["stats"]["seed"] == 12345
        out = document["text"].encode()
    assert out.startswith(b"w0 w1 w2 ")


@pytest.mark.parametrize(
    ("args", "seen"),
    [(["prefill"], NOTICES[-1]), (["hello", "--policy", "slow-load"], "loading slowly")],
)
def test_sigint_while_reading_or_loading(args: list[str], seen: str) -> None:
    assert interrupted([*PROGRAM, "complete", "-m", "x", *args], seen) == (130, b"")


# Help


@pytest.mark.parametrize("command", ["chat", "complete", "check"])
def test_model_options_are_in_the_first_screen_of_help(run: Run, command: str) -> None:
    first_screen = "\n".join(lines(run(command, "--help").stdout)[:20])
    assert "-m, --model FILE" in first_screen
    assert "-md, --model-draft, --spec-draft-model FILE" in first_screen


def test_every_option_of_the_design_exists() -> None:
    known = {name for param in complete.params for name in param.opts}
    named = (
        "-m -md -hf -hfd --pair -c -cd -t -ngl -ngld -fa -ctk -ctv --lora --temp --top-k --top-p "
        "--min-p --typical --repeat-penalty --repeat-last-n --frequency-penalty "
        "--presence-penalty --dry-multiplier --dry-base --dry-allowed-length --logit-bias --seed "
        "--no-mmap --mlock --memory-limit --stream "
        "--policy --verify --draft-temp --device-sampling "
        "--chat-template --chat-template-kwargs --reasoning --ignore-eos -e -ctkd -ctvd -r "
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file "
        "--spec-type "
        "--load-mode --spec-draft-model --spec-draft-ngl --spec-draft-n-max --spec-draft-p-min "
        "--chat-template-file -sys -n --verbose --stop --raw --json -f"
    )
    assert known >= set(named.split(" "))


def test_option_defaults_match_the_dataclasses() -> None:
    context = click.Context(complete)
    typed = {param.name: param.get_default(context) for param in complete.params}
    typed = {name: () if name in ("lora", "logit_bias") else typed[name] for name in typed}
    typed["seed"] = -1  # a default that is shown is kept as a text
    assert options.sampling_params(typed) == SamplingParams()
    assert set(inspect.signature(EngineConfig).parameters) >= {"model", "draft", "num_ctx"}


# models, pull, inspect, check


def test_models_lists_the_catalog(run: Run) -> None:
    text = run("models").stdout
    assert "qwen2.5-coder" in text
    assert "Apache-2.0" in text
    pairs = json.loads(run("models", "--json").stdout)["pairs"]
    assert {"name", "target", "draft", "licence", "checked", "note", "here"} <= set(pairs[0])


def test_pull_prints_the_paths(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (Path("/m/t.gguf"), Path("/m/d.gguf"))
    monkeypatch.setattr(model_choice, "fetch_pair", lambda _pair, _terminal: files)
    result = run("pull", "qwen2.5-coder")
    assert (result.exit_code, result.stdout) == (0, "/m/t.gguf\n/m/d.gguf\n")


def test_stderr_before_the_first_prompt_is_short(run: Run) -> None:
    result = run("chat", "-m", "x.gguf", input="")
    assert result.exit_code == 0
    assert len(lines(result.stderr)) < 20
    assert os.environ.get("NO_COLOR") is None or "\x1b" not in result.stderr


# doctor


def test_doctor_says_what_this_runs_on(run: Run) -> None:
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for word in ("versions", "processor", "cores", "llama.cpp", "native part", "cache"):
        assert any(line.startswith(word) for line in lines(result.stdout)), word


def test_doctor_as_json_is_one_document(run: Run) -> None:
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["llama"]["known"] is True


def test_doctor_works_where_the_native_part_does_not() -> None:
    result = subprocess.run(
        [sys.executable, "-c", "from dyspec_edge.cli.main import main; main()", "doctor"],
        env={**os.environ, "DYSPEC_LIBRARY": "nothing.so"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "processor" in result.stdout
    (line,) = lines(result.stderr)
    assert line.startswith("error: native part: ")
