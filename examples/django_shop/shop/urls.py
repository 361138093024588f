from django.contrib import admin
from django.urls import path

from shop.views import orders

urlpatterns = [path("orders", orders), path("admin/", admin.site.urls)]
