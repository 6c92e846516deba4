"""The home page, its buttons, and the slow supplier that fetch_suppliers asks."""

import random
import time
from collections.abc import Callable

from django.contrib import messages
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from django_dispatch.models import Lease, Run, Status
from testproject.shop import sales, tasks
from testproject.shop.models import Order

NEWEST_RUNS = 10_000

# What each button does, and its label.
ACTIONS: dict[str, tuple[str, Callable[[], object]]] = {
    "order": ("Place an order", lambda: sales.place_orders(1)),
    "fifty-orders": ("Place 50 orders", lambda: sales.place_orders(50)),
    "import": ("Import a catalogue", lambda: tasks.import_catalogue.delay(sales.receive_catalogue().pk)),
    "primes": ("Count primes", tasks.count_primes.delay),
    "suppliers": ("Ask the suppliers", tasks.fetch_suppliers.delay),
    "fail": ("Fail", tasks.always_fails.delay),
    "crash": ("Crash", tasks.crash.delay),
}


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Show what the shop and its dispatchers are doing right now, at the same cost however many runs there are."""
    runs = Run.objects.order_by("-pk")
    newest = runs.values_list("pk", flat=True).first() or 0
    counted = Run.objects.filter(pk__gt=newest - NEWEST_RUNS).values_list("status").annotate(Count("pk"))
    counts = dict(counted.order_by())
    context = {
        "actions": [(name, label) for name, (label, _) in ACTIONS.items()],
        "counts": [(status, counts.get(status, 0)) for status in Status],
        "dispatchers": Lease.objects.filter(expires_at__gt=timezone.now()).count(),
        "newest_runs": NEWEST_RUNS,
        "orders": Order.objects.select_related("product").order_by("-pk")[:12],
        "runs": runs.defer("errors", "result")[:12],
    }
    return render(request, "shop/home.html", context)


@require_POST
def do(request: HttpRequest, name: str) -> HttpResponse:
    """Do what a button says; whatever takes time is left to a task."""
    if name not in ACTIONS:
        raise Http404
    label, action = ACTIONS[name]
    action()
    messages.success(request, f"{label}: done, the rest happens in the background.")
    return redirect("home")


@require_safe
def slow(request: HttpRequest) -> JsonResponse:
    """Answer after a second, like somebody else's server."""
    time.sleep(1)
    return JsonResponse({"supplier": request.GET.get("supplier"), "stock": random.randint(0, 500)})
