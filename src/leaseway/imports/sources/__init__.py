"""Where an import's pages come from. A source knows ports and the domain; it asks through what it is given."""
