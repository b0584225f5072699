# mypy: ignore-errors
"""Fills the forum with categories, topics, comments and users, and prints two login sessions."""

import json
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "forum_settings")
import django

django.setup()

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from spirit.category.models import Category
from spirit.comment.models import Comment
from spirit.topic.models import Topic

TOPICS = {
    "Gardening": [
        ("When to sow tomatoes?", ["Late March, indoors.", "Not before the frost is over."]),
        ("Slugs again", ["Copper tape helps."]),
        ("Best compost bin", []),
    ],
    "Cooking": [
        ("Bread without kneading", ["Wait twelve hours.", "Use a hot pot.", "It worked!"]),
        ("Salt or sugar first?", ["Salt."]),
    ],
    "Travel": [
        ("Night trains in Europe", ["Book early."]),
        ("Ferry to Norway", []),
        ("Packing light", ["Two shirts are enough."]),
    ],
    "Computers": [
        ("Which editor?", ["Any that you know."]),
        ("Old laptop, new system", ["Try a light desktop."]),
    ],
}


def session_of(user):
    """Create a logged-in session; returns its cookie value."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store[BACKEND_SESSION_KEY] = "spirit.user.auth.backends.UsernameAuthBackend"
    store.create()
    return store.session_key


def fill():
    """Create all content; returns the session cookies by login."""
    call_command("migrate", verbosity=0)
    users = get_user_model().objects
    moderator = users.create_superuser("moderator", "moderator@forum.test", "moderator-password")
    ida = users.create_user("ida", "ida@forum.test", "ida-password")
    bo = users.create_user("bo", "bo@forum.test", "bo-password")
    for user in (moderator, ida, bo):
        user.st.is_verified = True
        user.st.is_administrator = user is moderator
        user.st.is_moderator = user is moderator
        user.st.save()
    for name, topics in TOPICS.items():
        category = Category.objects.create(title=name, description=f"All about {name.lower()}.")
        for title, comments in topics:
            topic = Topic.objects.create(user=bo, category=category, title=title)
            bodies = [f"{title} Tell me what you think.", *comments]
            for number, body in enumerate(bodies):
                Comment.objects.create(
                    user=bo if number % 2 == 0 else moderator,
                    topic=topic,
                    comment=body,
                    comment_html=f"<p>{body}</p>",
                )
            Topic.objects.filter(pk=topic.pk).update(comment_count=len(bodies))
    return {
        "reddit": {"sessionid": session_of(ida)},
        "reddit_admin": {"sessionid": session_of(moderator)},
    }


print(json.dumps(fill()))
