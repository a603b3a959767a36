"""The plugins that come with core, registered through the same entry points as anybody's."""
