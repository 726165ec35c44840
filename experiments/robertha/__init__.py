"""Experiments after *Robertha* (Podasca and Das, ACL 2026)."""
