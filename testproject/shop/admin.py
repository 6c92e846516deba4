"""The shop's own pages in the admin."""

from django.contrib import admin

from testproject.shop.models import CatalogueImport, Order, Product


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # a class at run time takes none
    list_display = ["sku", "name", "price"]
    search_fields = ["sku", "name"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # a class at run time takes none
    list_display = ["number", "email", "product", "quantity", "status", "placed_at", "receipt_sent_at"]
    list_filter = ["status"]
    list_select_related = ["product"]
    search_fields = ["number", "email"]
    raw_id_fields = ["product"]


@admin.register(CatalogueImport)
class CatalogueImportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # a class at run time takes none
    list_display = ["file", "rows_done", "uploaded_at"]
