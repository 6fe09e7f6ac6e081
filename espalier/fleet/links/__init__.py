"""Links between hosts: who is let in, how letters travel, what they look like on the wire. Begin with `transport`."""
