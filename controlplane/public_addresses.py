"""Which addresses are public on the Internet.

Any layer may import this module. Webhooks and computes must not reach what only Perch's host can
reach: the host's own services, its network and the cloud provider's metadata service. The tables
are Perch's own, because Python's definition of a private address differs between its versions.
"""

from ipaddress import IPv4Network, IPv6Network

# IANA's special-purpose registry, and other networks that are not public.
NOT_PUBLIC_4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared address space (carrier-grade NAT)
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's host services, though formally a public address
        "169.254.0.0/16",  # link-local, including clouds' metadata services
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relay anycast
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, including broadcast
    )
]
# IANA assigns public addresses only from this network. Loopback, link-local, unique local,
# site-local and multicast addresses lie outside of it.
PUBLIC_6 = IPv6Network("2000::/3")
NOT_PUBLIC_6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, including Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which embeds an IPv4 address
        "3fff::/20",  # documentation
    )
]
