# mypy: ignore-errors
"""Fills the shop: categories, products, two customers with a session each, orders, reviews. Prints the sessions."""

import json
import os
from decimal import Decimal

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop_settings")
import django

django.setup()

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from oscar.apps.catalogue.categories import create_from_breadcrumbs
from oscar.core.loading import get_class, get_model

PRODUCTS = {
    "Books > Fiction": [("The Glass Orchard", "12.50", 20), ("Night Ferry", "8.99", 3), ("A Map of Salt", "15.00", 11),
                        ("The Quiet Engine", "9.75", 7), ("Winter Letters", "11.20", 0)],
    "Books > Science": [("Magnets and Globes", "24.00", 5), ("The Small Earth", "31.50", 9), ("Tides Explained", "18.25", 14)],
    "Kitchen > Tools": [("Oak Cutting Board", "27.00", 8), ("Steel Whisk", "6.40", 30), ("Cast Iron Pan", "42.99", 4),
                        ("Lemon Press", "13.10", 12), ("Bread Knife", "19.80", 6)],
    "Kitchen > Tea": [("Green Tea Tin", "7.25", 25), ("Clay Teapot", "38.00", 2), ("Tea Strainer", "4.15", 40)],
    "Garden": [("Watering Can", "16.70", 10), ("Seed Tray", "5.60", 18), ("Garden Gloves", "9.30", 22), ("Pruning Shears", "21.45", 5)],
}  # fmt: skip
REVIEWS = [
    ("Night Ferry", 5, "Could not stop", "Read it in one night."),
    ("Night Ferry", 2, "Too slow", "Nothing happens."),
    ("Cast Iron Pan", 4, "Heavy but good", "It will outlive me."),
    ("Clay Teapot", 1, "Broken", "It came in pieces."),
]


def session_of(user):
    """A logged-in session, as a cookie value."""
    store = SessionStore()
    store[SESSION_KEY], store[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store.create()
    return store.session_key


def fill():
    """Everything."""
    call_command("migrate", verbosity=0)
    users, partner_model, country = get_user_model(), get_model("partner", "Partner"), get_model("address", "Country")
    clerk = users.objects.create_superuser("clerk", "clerk@shop.test", "clerk-password")
    kai = users.objects.create_user("kai", "kai@shop.test", "kai-password", first_name="Kai", last_name="Holm")
    country.objects.create(iso_3166_1_a2="GB", iso_3166_1_a3="GBR", iso_3166_1_numeric="826", printable_name="United Kingdom",
                           name="United Kingdom", is_shipping_country=True)  # fmt: skip
    partner = partner_model.objects.create(name="Warehouse", code="warehouse")
    partner.users.add(clerk)
    kind = get_model("catalogue", "ProductClass").objects.create(name="Thing", track_stock=True, requires_shipping=True)
    product_model, stock, placed = get_model("catalogue", "Product"), get_model("partner", "StockRecord"), {}
    for crumbs, things in PRODUCTS.items():
        category = create_from_breadcrumbs(crumbs)
        for number, (title, price, count) in enumerate(things):
            code = f"{crumbs.split()[-1][:3].upper()}-{number + 1:02d}"
            placed[title] = made = product_model.objects.create(
                title=title, product_class=kind, upc=code, description=f"{title}, item {code}.", structure="standalone"
            )
            made.categories.add(category)
            stock.objects.create(product=made, partner=partner, partner_sku=code, price=Decimal(price), num_in_stock=count,
                                 price_currency="GBP")  # fmt: skip
    for title, score, head, body in REVIEWS:
        get_model("reviews", "ProductReview").objects.create(
            product=placed[title],
            score=score,
            title=head,
            body=body,
            name=f"Reader {score}",
            email="r@shop.test",
            status=1,
        )
    orders(kai, placed)
    call_command("rebuild_index", interactive=False, verbosity=0)
    return {"shopping": {"sessionid": session_of(kai)}, "shopping_admin": {"sessionid": session_of(clerk)}}


def orders(user, placed):
    """Three orders of the customer, in different states."""
    basket_model, creator = get_model("basket", "Basket"), get_class("order.utils", "OrderCreator")
    strategy = get_class("partner.strategy", "Selector")().strategy(user=user)
    free, calculator = (
        get_class("shipping.methods", "Free")(),
        get_class("checkout.calculators", "OrderTotalCalculator")(),
    )
    address = get_model("order", "ShippingAddress")
    for number, (titles, status) in enumerate([
        (["Steel Whisk", "Bread Knife"], "Complete"), (["Clay Teapot"], "Being processed"), (["Seed Tray", "Watering Can"], "Pending"),
    ]):  # fmt: skip
        basket = basket_model.objects.create(owner=user)
        basket.strategy = strategy
        for title in titles:
            basket.add_product(placed[title])
        charge = free.calculate(basket)
        where = address.objects.create(first_name="Kai", last_name="Holm", line1="1 Harbour Lane", line4="Leith",
                                       postcode="EH6 6JH", country_id="GB")  # fmt: skip
        made = creator().place_order(basket=basket, total=calculator.calculate(basket, charge), user=user, shipping_method=free,
                                     shipping_charge=charge, shipping_address=where, order_number=f"10000{number + 1}", status=status)  # fmt: skip
        basket.submit()
        type(made).objects.filter(pk=made.pk).update(date_placed=f"2026-0{number + 1}-15T12:00:00Z")


print(json.dumps(fill()))
