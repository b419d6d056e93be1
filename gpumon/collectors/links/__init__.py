"""The links child: it reads ports, services and processes from files of the kernel. Any read may block for ever."""
