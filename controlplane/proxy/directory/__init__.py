"""The control plane as the proxy sees it. The proxy's other packages import only `interface`."""
