"""Runs, leases, schedules and paused queues in Django's admin, in the web process. Reading never writes or locks."""

from django.apps import apps

# Without the admin app its modules cannot be imported; this package can.
if apps.is_installed("django.contrib.admin"):
    from django.contrib import admin

    from django_dispatch.admin.leases import LeaseAdmin
    from django_dispatch.admin.queues import PausedQueueAdmin
    from django_dispatch.admin.runs import RunAdmin
    from django_dispatch.admin.schedules import ScheduleAdmin
    from django_dispatch.models import Lease, PausedQueue, Run, Schedule

    admin.site.register(Run, RunAdmin)
    admin.site.register(Lease, LeaseAdmin)
    admin.site.register(Schedule, ScheduleAdmin)
    admin.site.register(PausedQueue, PausedQueueAdmin)
