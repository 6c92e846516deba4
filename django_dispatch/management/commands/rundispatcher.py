"""``manage.py rundispatcher``: claim runs and have them executed, until told to end."""

import asyncio
import logging
import os
import sys
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from ... import checks, conf, logs
from ...conf import DispatchSettings
from ...dispatcher.process import package_version
from ...dispatcher.service import Dispatcher, Mode
from .. import reload, streams

BANNER = """\
django-dispatch {version}: dispatcher {node}, pid {pid}
  queues     {queues}
  executors  {processes} sync{asynchronous}
  database   {database}, lease of {ttl:g} s, renewed every {renew:g} s
  wakeups    {wakeups}
  ends with  Ctrl-C or SIGTERM: up to {patience:g} s for what runs, a second one makes haste
"""


logger = logging.getLogger("django_dispatch.dispatcher")


class Command(BaseCommand):
    help = "Runs a dispatcher: it claims runs from the database and has them executed by child processes."
    requires_system_checks = [checks.SETTINGS_TAG]
    stealth_options = ("supervised",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        streams.hold_standard_streams()  # before anything is opened
        super().__init__(*args, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--queues", help="Comma-separated queues to serve, as mail*,-mail.slow. Default: all, known and to come.")
        add("--node", help="The name shown in the admin and in logs. Default: the host's name.")
        add("--processes", type=int, help="Executors for synchronous tasks. Default: one per CPU.")
        add("--async-concurrency", type=int, help="Asynchronous runs at once. Default: 8. 0: run none.")
        add(
            "--poll-interval",
            type=float,
            metavar="SECONDS",
            help="Look for work at least this often. Default: 1, on SQLite 0.5.",
        )
        add("--lease-ttl", type=float, metavar="SECONDS", help="How long the lease lives without renewal. Default: 15.")
        add("--shutdown-timeout", type=float, metavar="SECONDS", help="Wait so long for bodies to end. Default: 30.")
        add("--log-format", choices=conf.LOG_FORMATS, help="Form of the log, if LOGGING does not say. Default: text.")
        add("--burst", action="store_true", help="Exit when nothing is due and nothing runs.")
        add("--max-runs", type=int, metavar="N", help="Exit after N runs.")
        add("--no-listen", action="store_true", help="Do not LISTEN for wakeups: find work by polling alone.")
        add("--metrics-port", type=int, metavar="PORT", help="Serve metrics and health here. Default: 8070. 0: do not.")
        add("--metrics-host", metavar="ADDRESS", help="And on this address. Default: 127.0.0.1. 0.0.0.0: on all.")
        reloading = parser.add_mutually_exclusive_group()
        reloading.add_argument(
            "--reload",
            action="store_true",
            default=None,
            help="Start afresh when the project's code changes. Default: if DEBUG is on, unless --burst or --max-runs.",
        )
        reloading.add_argument("--no-reload", action="store_false", dest="reload", help="Do not watch the code.")

    def handle(self, **options: Any) -> None:
        if options["max_runs"] is not None and options["max_runs"] < 1:
            raise CommandError(f"--max-runs must be at least 1, not {options['max_runs']}.")
        settings = self._settings(options)
        is_bounded = options["burst"] or options["max_runs"] is not None
        wants_reload = options["reload"]
        if wants_reload is None:
            wants_reload = django_settings.DEBUG and not is_bounded
        if wants_reload and not reload.is_supervised():
            sys.exit(reload.supervise())
        if reload.is_supervised():
            reload.end_with_supervisor()
        logs.configure(options["verbosity"], log_format=settings.log_format, node=settings.node, may_wait=True)
        mode = Mode(is_burst=options["burst"], max_runs=options["max_runs"], verbosity=options["verbosity"])
        with logs.written_by_a_thread() as writer:
            if settings.log_format == "json":
                logger.info("Dispatcher %s begins, version %s.", settings.node, package_version())
            elif options["verbosity"]:
                writer.say(banner(settings))
            code = asyncio.run(serve(settings, mode))
        if writer.is_stuck:
            os._exit(code)
        if code:
            sys.exit(code)

    def _settings(self, options: dict[str, Any]) -> DispatchSettings:
        queues = options["queues"]
        try:
            return conf.load(
                queues=None if queues is None else [name.strip() for name in queues.split(",")],
                node=options["node"],
                processes=options["processes"],
                async_concurrency=options["async_concurrency"],
                poll_interval=options["poll_interval"],
                lease_ttl=options["lease_ttl"],
                shutdown_timeout=options["shutdown_timeout"],
                log_format=options["log_format"],
                metrics_port=options["metrics_port"],
                metrics_host=options["metrics_host"],
                wakeups=[] if options["no_listen"] else None,
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None


async def serve(settings: DispatchSettings, mode: Mode) -> int:
    """Run a dispatcher on this loop; return its exit code."""
    if (task := asyncio.current_task()) is not None:
        task.set_name("main")
    return await Dispatcher(settings, mode).run()


def banner(settings: DispatchSettings) -> str:
    """Say what this dispatcher serves, and how."""
    from ...dispatcher.looks import LISTENING_FACTOR

    seconds = settings.poll_interval_seconds * (LISTENING_FACTOR if "pg_notify" in settings.wakeups else 1)
    return BANNER.format(
        version=package_version(),
        node=settings.node,
        pid=os.getpid(),
        queues=", ".join(settings.queues) if settings.queues else "all",
        processes=settings.processes,
        asynchronous=f", {settings.async_concurrency} async runs at once" if settings.async_concurrency else "",
        database=settings.database,
        ttl=settings.lease_ttl_seconds,
        renew=settings.renew_seconds,
        wakeups=f"{', '.join(settings.wakeups) or 'none'}; a look at least every {seconds:g} s",
        patience=settings.shutdown_timeout_seconds,
    )
