"""The links child: reads ports, services and processes from the kernel's files. Any read may never return."""
