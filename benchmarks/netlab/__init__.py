"""Hosts made of network namespaces with shaped links, and what is measured over them."""
