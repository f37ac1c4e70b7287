"""Anabranch: an asyncio task-tree orchestration engine for language models."""
