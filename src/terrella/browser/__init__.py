"""Real Chromium for worlds of web pages: a guarded browser, tabs, page trees and the actions of an agent."""
