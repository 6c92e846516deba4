"""Build the wheel, install it into an empty virtual environment, and take the README's first steps in a new project."""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from testproject import postgres  # noqa: E402

# What a reader has already: an app of his own, and a PostgreSQL.
SETTINGS = """
INSTALLED_APPS += ["shop"]
DATABASES = {{"default": {database!r}}}
"""
ORDER = """
from shop.models import Order
print("order", Order.objects.create(email="ada@example.com").pk)
"""
VERIFY = """
from django.contrib.auth.models import User
from django.test import Client
from django_dispatch.models import Run
run = Run.objects.get()
assert (run.status, run.result, run.queue) == ("SUCCESSFUL", "sent for order 1", "mail"), (run.status, run.errors)
client = Client(headers={"host": "localhost"})
client.force_login(User.objects.create_superuser("admin"))
for page in ("run/", f"run/{run.pk}/change/", "lease/"):
    assert client.get(f"/admin/django_dispatch/{page}").status_code == 200, page
print("run", run.pk, "is", run.status)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, postgres.TemporaryServer() as server:
        work = Path(folder)
        say("build the source archive, and from it the wheel")
        run(sys.executable, "-m", "build", "--outdir", work / "dist", ROOT, cwd=work, quiet=True)
        (wheel,) = (work / "dist").glob("*.whl")
        say(f"install {wheel.name} into an empty environment")
        venv.create(work / "venv", with_pip=True)
        python = work / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", f"{wheel}[binary]", cwd=work)
        say("start a project")
        run(python, "-m", "django", "startproject", "mysite", cwd=work)
        site = work / "mysite"
        run(python, "manage.py", "startapp", "shop", cwd=site)
        with (site / "mysite" / "settings.py").open("a") as settings:
            settings.write(SETTINGS.format(database=postgres.django_database(server.url)))
        say("do what the README says")
        for name, code in readme_files().items():
            with (site / ("mysite/settings.py" if name == "settings.py" else name)).open("a") as file:
                file.write(f"\n{code}")
        say("migrate, enqueue, dispatch")
        run(python, "manage.py", "makemigrations", "--verbosity", "0", "shop", cwd=site)
        run(python, "manage.py", "check", "--fail-level", "WARNING", cwd=site)
        run(python, "manage.py", "makemigrations", "--check", "--dry-run", cwd=site)
        run(python, "manage.py", "migrate", "--verbosity", "0", cwd=site)
        run(python, "manage.py", "shell", "-c", ORDER, cwd=site)
        run(python, "manage.py", "rundispatcher", "--burst", cwd=site)
        run(python, "manage.py", "shell", "-c", VERIFY, cwd=site)


def readme_files() -> dict[str, str]:
    """Return the README's first steps: its Python blocks that begin with the name of their file."""
    blocks = re.findall(
        r"^```python\n# ([\w/]+\.py)(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    files = {name: f"# {name}{code}" for name, code in blocks}
    assert {"settings.py", "shop/tasks.py", "shop/views.py", "shop/models.py"} <= set(files), files.keys()
    return files


def say(text: str) -> None:
    print(f"-- {text}", flush=True)


def run(*command: str | Path, cwd: Path, quiet: bool = False) -> None:
    """Run a command to its successful end, where nothing of the checkout can be imported by chance."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "DJANGO", "VIRTUAL_ENV"))}
    output = subprocess.PIPE if quiet else None
    process = subprocess.run(command, cwd=cwd, env=env, stdout=output, stderr=output, text=True, check=False)
    if process.returncode:
        sys.exit(f"{process.stdout or ''}{process.stderr or ''}{command} ended with exit code {process.returncode}")


if __name__ == "__main__":
    main()
