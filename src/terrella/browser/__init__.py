"""Real Chromium for web worlds: a guarded browser, its tabs, page trees and agent actions."""
