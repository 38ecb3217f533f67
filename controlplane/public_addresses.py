"""Which addresses are anybody's on the Internet.

Beside the floors: webhooks and computes must not reach through Perch what only Perch's host
reaches: its own services, its network, a cloud's metadata. The tables are our own, as Python's idea
of a private address differs from version to version.
"""

from ipaddress import IPv4Network, IPv6Network

# IANA's special purposes, and what else is nobody's on the Internet.
NOT_PUBLIC_4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # a carrier's, shared
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's host, public in its number only
        "169.254.0.0/16",  # link-local, and clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays from 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
# Only from here are addresses given out for the Internet: loopback, link-local, unique local,
# site-local and multicast lie outside.
PUBLIC_6 = IPv6Network("2000::/3")
NOT_PUBLIC_6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which carries an IPv4 address
        "3fff::/20",  # documentation
    )
]
