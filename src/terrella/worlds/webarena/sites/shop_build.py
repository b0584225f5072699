# mypy: ignore-errors
"""Fills the shop with products, users, orders and reviews, and prints two login sessions."""

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
    "Books > Fiction": [
        ("The Glass Orchard", "12.50", 20),
        ("Night Ferry", "8.99", 3),
        ("A Map of Salt", "15.00", 11),
        ("The Quiet Engine", "9.75", 7),
        ("Winter Letters", "11.20", 0),
    ],
    "Books > Science": [
        ("Magnets and Globes", "24.00", 5),
        ("The Small Earth", "31.50", 9),
        ("Tides Explained", "18.25", 14),
    ],
    "Kitchen > Tools": [
        ("Oak Cutting Board", "27.00", 8),
        ("Steel Whisk", "6.40", 30),
        ("Cast Iron Pan", "42.99", 4),
        ("Lemon Press", "13.10", 12),
        ("Bread Knife", "19.80", 6),
    ],
    "Kitchen > Tea": [
        ("Green Tea Tin", "7.25", 25),
        ("Clay Teapot", "38.00", 2),
        ("Tea Strainer", "4.15", 40),
    ],
    "Garden": [
        ("Watering Can", "16.70", 10),
        ("Seed Tray", "5.60", 18),
        ("Garden Gloves", "9.30", 22),
        ("Pruning Shears", "21.45", 5),
    ],
}
REVIEWS = [
    ("Night Ferry", 5, "Could not stop", "Read it in one night."),
    ("Night Ferry", 2, "Too slow", "Nothing happens."),
    ("Cast Iron Pan", 4, "Heavy but good", "It will outlive me."),
    ("Clay Teapot", 1, "Broken", "It came in pieces."),
]
ORDERS = [
    (["Steel Whisk", "Bread Knife"], "Complete"),
    (["Clay Teapot"], "Being processed"),
    (["Seed Tray", "Watering Can"], "Pending"),
]


def session_of(user):
    """Create a logged-in session; returns its cookie value."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store.create()
    return store.session_key


def fill():
    """Create all content; returns the session cookies by login."""
    call_command("migrate", verbosity=0)
    users = get_user_model().objects
    clerk = users.create_superuser("clerk", "clerk@shop.test", "clerk-password")
    kai = users.create_user(
        "kai", "kai@shop.test", "kai-password", first_name="Kai", last_name="Holm"
    )
    get_model("address", "Country").objects.create(
        iso_3166_1_a2="GB",
        iso_3166_1_a3="GBR",
        iso_3166_1_numeric="826",
        printable_name="United Kingdom",
        name="United Kingdom",
        is_shipping_country=True,
    )
    partner = get_model("partner", "Partner").objects.create(name="Warehouse", code="warehouse")
    partner.users.add(clerk)
    products = create_products(partner)
    create_reviews(products)
    create_orders(kai, products)
    call_command("rebuild_index", interactive=False, verbosity=0)
    return {
        "shopping": {"sessionid": session_of(kai)},
        "shopping_admin": {"sessionid": session_of(clerk)},
    }


def create_products(partner):
    """Create the products with their categories and stock; returns them by title."""
    product_class = get_model("catalogue", "ProductClass").objects.create(
        name="Thing", track_stock=True, requires_shipping=True
    )
    products = {}
    for breadcrumbs, items in PRODUCTS.items():
        category = create_from_breadcrumbs(breadcrumbs)
        for index, (title, price, count) in enumerate(items):
            code = f"{breadcrumbs.split()[-1][:3].upper()}-{index + 1:02d}"
            product = get_model("catalogue", "Product").objects.create(
                title=title,
                product_class=product_class,
                upc=code,
                description=f"{title}, item {code}.",
                structure="standalone",
            )
            product.categories.add(category)
            get_model("partner", "StockRecord").objects.create(
                product=product,
                partner=partner,
                partner_sku=code,
                price=Decimal(price),
                num_in_stock=count,
                price_currency="GBP",
            )
            products[title] = product
    return products


def create_reviews(products):
    """Create the reviews, all of them approved."""
    for title, score, head, body in REVIEWS:
        get_model("reviews", "ProductReview").objects.create(
            product=products[title],
            score=score,
            title=head,
            body=body,
            name=f"Reader {score}",
            email="r@shop.test",
            status=1,
        )


def create_orders(user, products):
    """Create the customer's three orders, in different states."""
    strategy = get_class("partner.strategy", "Selector")().strategy(user=user)
    shipping = get_class("shipping.methods", "Free")()
    calculator = get_class("checkout.calculators", "OrderTotalCalculator")()
    for index, (titles, status) in enumerate(ORDERS):
        basket = get_model("basket", "Basket").objects.create(owner=user)
        basket.strategy = strategy
        for title in titles:
            basket.add_product(products[title])
        charge = shipping.calculate(basket)
        address = get_model("order", "ShippingAddress").objects.create(
            first_name="Kai",
            last_name="Holm",
            line1="1 Harbour Lane",
            line4="Leith",
            postcode="EH6 6JH",
            country_id="GB",
        )
        order = get_class("order.utils", "OrderCreator")().place_order(
            basket=basket,
            total=calculator.calculate(basket, charge),
            user=user,
            shipping_method=shipping,
            shipping_charge=charge,
            shipping_address=address,
            order_number=f"10000{index + 1}",
            status=status,
        )
        basket.submit()
        placed = f"2026-0{index + 1}-15T12:00:00Z"
        type(order).objects.filter(pk=order.pk).update(date_placed=placed)


print(json.dumps(fill()))
