"""The program `dyspec-edge`: its commands, its exit codes, and every error as one line.

Exit codes: 0; 1 for an error; 2 for a usage error; 130 when interrupted.  An error is one line on
stderr that begins with "error: ".
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

import dyspec_edge
from dyspec_edge.cli import background
from dyspec_edge.cli.commands.bench import bench
from dyspec_edge.cli.commands.doctor import doctor
from dyspec_edge.cli.commands.draft import draft
from dyspec_edge.cli.commands.generation import chat, complete
from dyspec_edge.cli.commands.measuring import calibrate, check
from dyspec_edge.cli.commands.model_files import inspect, models, pull
from dyspec_edge.cli.commands.serve import serve
from dyspec_edge.cli.commands.trace import trace
from dyspec_edge.cli.syntax import INTERRUPTED, CommandGroup
from dyspec_edge.cli.terminal import Terminal, discard_output, open_missing_streams
from dyspec_edge.errors import DyspecError, OptionError


class Group(CommandGroup):
    """Turns every error into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Runs the command that `args` name, and exits."""
        typed = list(sys.argv[1:] if args is None else args)
        open_missing_streams()
        code = self._run(typed, {**extra, "standalone_mode": False})
        if background.left_running():
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
        sys.exit(code)

    def _run(self, typed: list[str], extra: Mapping[str, Any]) -> int:
        try:
            result = super().main(typed, **extra)
            sys.stdout.flush()  # a full disk is an error here, not when Python has ended
            return result if isinstance(result, int) else 0
        except (click.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "dyspec-edge"
            return _fail(f"{error.format_message()} ({path} --help)", error.exit_code)
        except click.ClickException as error:
            return _fail(error.format_message(), error.exit_code)
        except OptionError as error:
            return _fail(str(error), 2)
        except DyspecError as error:
            return _fail(str(error), 1)
        except OSError as error:
            if error.filename is not None:  # it is about a file, not about an output stream
                return self._mistake(error, typed)
            discard_output()
            reason = (error.strerror or str(error)).lower()
            return _fail(f"cannot write the output: {reason}", 1)
        except MemoryError:
            return _fail("out of memory; a smaller -c, model or prompt needs less", 1)
        except Exception as error:
            return self._mistake(error, typed)

    def _mistake(self, error: Exception, typed: Sequence[str]) -> int:
        """A mistake of ours, on one line; the whole trace for those who ask for it."""
        if {"-v", "--verbose"} & set(typed):
            traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        return _fail(f"internal error: {what} (--verbose shows where)", 1)


def _fail(message: str, code: int) -> int:
    Terminal().error(message)
    return code


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(dyspec_edge.__version__, prog_name="dyspec-edge")
def cli() -> None:
    """Run a GGUF model faster with a small draft model and dynamic token trees (DySpec).

    Begin with: dyspec-edge chat --pair qwen2.5-coder
    """


for command in (
    bench,
    chat,
    complete,
    serve,
    trace,
    check,
    calibrate,
    draft,
    inspect,
    models,
    pull,
    doctor,
):
    cli.add_command(command)


def main() -> NoReturn:
    """The program `dyspec-edge`."""
    cli.main(prog_name="dyspec-edge")
