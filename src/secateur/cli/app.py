"""The commands. Each imports what it needs itself, so that ``--help`` stays quick."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from secateur.cli.bench import bench
from secateur.cli.calibrate import calibrate
from secateur.cli.channel import ChannelArguments, open_client
from secateur.cli.convert import convert
from secateur.cli.evaluate import evaluate
from secateur.cli.exits import BAD_INPUT, FAILED, BadInputError, extra_needed
from secateur.cli.index import index
from secateur.cli.label import label
from secateur.cli.options import Dtype, Json, Model, RequestArguments, TargetArguments, command
from secateur.cli.search import search
from secateur.cli.train import train
from secateur.errors import UnsupportedByModelError
from secateur.types import Passage, PruneOptions, RankedPassages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from secateur import Pruner
    from secateur.cli.inputs import Request

app = typer.Typer(
    help="Rerank and prune retrieved passages between vector search and an LLM.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="Where the model runs, such as cpu or cuda:0.")
]


class _RerankAndPrune(Protocol):
    """What Pruner and Client have in common."""

    def __call__(
        self, query: str, passages: Sequence[Passage | str], options: PruneOptions, /
    ) -> RankedPassages: ...


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from secateur import __version__

        typer.echo(f"secateur {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(BAD_INPUT)


@app.command()
@command
def serve(
    *,
    model: Model = None,
    calibration: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Default threshold and keep rule, of `calibrate`."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    dtype: Dtype = None,
    device: Device = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of one pass.")] = None,
    cache_bytes: Annotated[
        int | None, typer.Option(help="Memory of the result cache; 0 turns it off.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="TOML file with settings.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting. May be repeated."),
    ] = None,
) -> None:
    """Run the gRPC server until SIGTERM or Ctrl-C.

    What is not given comes from SECATEUR_* variables, the TOML file, or the defaults; all are
    printed at start.
    """
    flags: dict[str, object] = {
        "model": model,
        "calibration": calibration,
        "host": host,
        "port": port,
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "cache_bytes": cache_bytes,
        "log_level": log_level,
        "config": config,
    }
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals:
            raise BadInputError(f"--set {setting}: expected NAME=VALUE")
        flags[name.strip().replace("-", "_")] = value
    with extra_needed("serve"):
        from secateur.server.app import run
        from secateur.server.settings import SettingsError, load_settings
    try:
        loaded = load_settings(**flags)
    except SettingsError as error:
        raise BadInputError(str(error)) from None
    if code := run(loaded):
        raise typer.Exit(code)


@app.command()
@command
def prune(
    request: RequestArguments,
    model: Model = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Rerank and prune passages in this process, without a server."""
    from secateur.cli.inputs import read_request

    given = read_request(request)
    pruner = _load(model, dtype=dtype, device=device)
    _answer(request, given, pruner.rerank_and_prune)


@app.command()
@command
def call(request: RequestArguments, server: TargetArguments, channel: ChannelArguments) -> None:
    """Rerank and prune passages through a running server."""
    from secateur.cli.inputs import read_request

    given = read_request(request)
    with open_client(server.target, channel, timeout=server.timeout) as client:
        _answer(request, given, client.rerank_and_prune)


@app.command()
@command
def demo(model: Model = None) -> None:
    """Start a server, prune real passages through it, stop it."""
    with extra_needed("serve"):
        from secateur.cli.demo import run_demo

        run_demo(model)


@app.command()
@command
def info(
    model: Model = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Ask a running server instead of loading."),
    ] = None,
    json_output: Json = False,
    *,
    channel: ChannelArguments,
) -> None:
    """Show a model's family, capabilities, defaults and limits."""
    if target is not None and model is not None:
        raise BadInputError("give --model or --target, not both")
    if target is None and channel.given:
        raise BadInputError("TLS and token options need --target")
    if target is not None:
        with open_client(target, channel) as client:
            model_info = client.model_info()
    else:
        model_info = _load(model).info
    if json_output:
        from secateur._json import write_json

        write_json(model_info, sys.stdout)
    else:
        from secateur._render import console_for_output, render_model_info

        render_model_info(console_for_output(), model_info)


app.command()(convert)
app.command()(train)
app.add_typer(evaluate, name="evaluate")
app.command()(label)
app.command()(calibrate)
app.command()(bench)
app.command()(index)
app.command()(search)


@app.command()
@command
def health(server: TargetArguments, channel: ChannelArguments) -> None:
    """Check a running server: exit code 0 when it serves, else 1."""
    with open_client(server.target, channel, timeout=server.timeout, max_attempts=1) as client:
        status = client.health()
    typer.echo(status)
    if status != "SERVING":
        raise typer.Exit(FAILED)


def _load(model: str | None, **given: str | None) -> Pruner:
    from secateur import Pruner

    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        return Pruner.load(model, **options)
    except ValueError as error:  # an unknown dtype or device
        raise BadInputError(str(error)) from None


def _answer(arguments: RequestArguments, request: Request, backend: _RerankAndPrune) -> None:
    """Send the request to a Pruner or Client and print what comes back."""
    if arguments.json_output:
        from secateur._json import write_json

        write_json(backend(request.query, request.passages, request.options), sys.stdout)
        return
    from secateur._render import console_for_output, render_ranked

    # The rendering counts tokens before and after, where the model scores tokens at all.
    options = replace(request.options, include_tokens=True)
    try:
        answer = backend(request.query, request.passages, options)
    except UnsupportedByModelError:
        answer = backend(request.query, request.passages, request.options)
    render_ranked(console_for_output(), request.query, request.passages, answer)
