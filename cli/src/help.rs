//! Texts of the commands beyond their options: the examples that end `--help`, and the other sections of the manual pages.

use clap::Command;

/// A term and its explanation.
pub type Entry = (&'static str, &'static str);

/// The texts of one command.
#[derive(Clone, Copy)]
pub struct Page {
    /// The command, such as `ironverbs adapter status`.
    pub of: &'static str,
    /// Paragraphs.
    pub description: &'static [&'static str],
    /// Exit statuses; empty for [`EXIT`].
    pub exit: &'static [Entry],
    /// Environment variables in addition to [`ADAPTER_ENVIRONMENT`].
    pub environment: &'static [Entry],
    /// Files in addition to [`ADAPTER_FILES`].
    pub files: &'static [Entry],
    /// Command lines and their effects.
    pub examples: &'static [Entry],
    /// Manual pages of other commands.
    pub see: &'static [&'static str],
    /// Pages of `docs/`; empty for those of the command above.
    pub documents: &'static [&'static str],
}

/// The texts of a command that needs none.
pub const NOTHING: Page = Page {
    of: "",
    description: &[],
    exit: &[],
    environment: &[],
    files: &[],
    examples: &[],
    see: &[],
    documents: &[],
};

/// Exit statuses of the commands that list none.
pub const EXIT: &[Entry] = &[
    ("0", "Success."),
    ("1", "Failure; one line on standard error gives the reason."),
    ("2", "The command line is invalid."),
];

/// Environment variables of every command with `--adapter`.
pub const ADAPTER_ENVIRONMENT: &[Entry] = &[
    (
        "IRONVERBS_NODE",
        "Directory of the adapter if --adapter names none. 'ironverbs run' sets it for the programs that it starts.",
    ),
    ("XDG_RUNTIME_DIR", "Directory of the user's own adapter, if it is in memory."),
];

/// Files of every command with `--adapter`.
pub const ADAPTER_FILES: &[Entry] = &[(
    "$XDG_RUNTIME_DIR/ironverbs, /dev/shm/ironverbs-UID, /tmp/ironverbs-UID",
    "The user's own adapter, which is the default: the first of these that is in memory. It stays until 'ironverbs adapter delete' or a \
     restart of the machine.",
)];

/// Environment variables of programs that use the devices.
const PROVIDER_ENVIRONMENT: [Entry; 3] = [
    ("IRONVERBS_LEND", "0: never lend registered memory to the adapter."),
    ("IRONVERBS_NO_DIRECT_COPY", "1: do not copy to or from the memory of other programs."),
    ("IRONVERBS_MEMLOCK", "0: register memory beyond RLIMIT_MEMLOCK."),
];

/// The texts of `command`, such as `ironverbs sim write_lat`.
pub fn page(command: &str) -> Page {
    let page = PAGES.iter().find(|page| page.of == command).copied().unwrap_or(NOTHING);
    match command.rsplit_once(' ') {
        Some((above, _)) if page.documents.is_empty() => {
            Page { documents: self::page(above).documents, ..page }
        }
        _ => page,
    }
}

/// Ends the help of each command with its examples.
pub fn attach(command: Command) -> Command {
    let name = command.get_name().to_owned();
    ended(command, &name)
}

fn ended(command: Command, name: &str) -> Command {
    let lines = |(line, effect): &Entry| format!("  {line}\n      {effect}");
    let examples: Vec<String> = page(name).examples.iter().map(lines).collect();
    let command = if examples.is_empty() {
        command
    } else {
        command.after_help(format!("Examples:\n{}", examples.join("\n")))
    };
    command.mut_subcommands(|below| {
        let name = format!("{name} {}", below.get_name());
        ended(below, &name)
    })
}

/// The commands with their own texts.
pub const PAGES: &[Page] = &[
    Page {
        of: "ironverbs",
        description: &[
            "Runs unmodified RDMA programs on a simulated ConnectX-5 with up to 127 virtual functions, or on a function of a real card that is \
             bound to vfio-pci. Everything is in user space: there is no kernel module and no daemon, and root is not needed where the host \
             allows user namespaces.",
            "A simulated adapter is a directory in memory, by default one for each user. All programs that run on it share it. iron0 is its \
             physical function; iron1 and up are its virtual functions. Virtual function I has the address 127.0.0.(I+1).",
            "Only programs that 'ironverbs run' starts, and their children, see these devices. For all others the system stays as it is.",
        ],
        environment: ADAPTER_ENVIRONMENT,
        files: &[
            (
                "/usr/lib/ironverbs/libironverbs_time.so",
                "Library that replaces the clocks of programs in virtual time.",
            ),
            (
                "/usr/lib/ironverbs/libironverbs_provider.so, /usr/lib/ironverbs/libironverbs_loader.so",
                "The provider that libibverbs uses for the devices, and the library by which libibverbs finds it. Without a package, the \
                 command uses those beside itself.",
            ),
            ("/usr/share/doc/ironverbs/", "README.md, and the pages of docs/."),
            ADAPTER_FILES[0],
        ],
        examples: &[
            ("ironverbs demo", "Show ib_read_lat between two virtual functions."),
            (
                "ironverbs run -- ib_write_bw -d iron1 -x 1",
                "Start a server on iron1; GID 1 is the one with its IP address.",
            ),
            ("ironverbs run -- ib_write_bw -d iron2 -x 1 127.0.0.2", "Start its client on iron2."),
            ("ironverbs doctor", "Report what this host lacks."),
        ],
        see: &["ibv_devinfo(1)", "ib_write_bw(1)", "rdma(8)"],
        documents: &["adapter.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs run",
        description: &[
            "Execs PROGRAM in a mount namespace in which /sys, /dev/infiniband and /etc/libibverbs.d show the devices beside those that were \
             there. A small process beside the program answers RDMA netlink and updates the counters below /sys.",
            "The devices are those of the adapters, which are created if they are missing, or the functions of --vfio and --vfio-user. In a \
             pod with functions bound to VFIO, they are those by default.",
            "With --clock timed, the clocks of PROGRAM show the time of a card, and every run is the same.",
        ],
        exit: &[
            ("125", "The devices cannot be shown; one line on standard error gives the reason."),
            ("126", "PROGRAM cannot be executed."),
            ("127", "PROGRAM cannot be found."),
            ("2", "The command line is invalid."),
            ("any other", "The exit status of PROGRAM, which can be any of the above, too."),
        ],
        environment: &[
            (
                "RDMAV_DRIVERS",
                "Set for PROGRAM: the provider of the devices, followed by the previous value.",
            ),
            PROVIDER_ENVIRONMENT[0],
            PROVIDER_ENVIRONMENT[1],
            PROVIDER_ENVIRONMENT[2],
            (
                "MLX_CQ_ALLOC_TYPE, MLX_QP_ALLOC_TYPE, MLX_SRQ_ALLOC_TYPE, MLX_RWQ_ALLOC_TYPE",
                "Memory of PROGRAM's queues, as for the mlx5 provider.",
            ),
            (
                "IRONVERBS_FUNCTIONS, IRONVERBS_NETWORK_STATUS, PCIDEVICE_*_INFO",
                "Functions of a pod, and their addresses.",
            ),
        ],
        files: &[(
            "/etc/podnetinfo/annotations, /var/run/kubernetes.io/dra-device-attributes",
            "Functions and addresses of a pod.",
        )],
        examples: &[
            ("ironverbs run -- ibv_devinfo -v", "Show the devices as libibverbs sees them."),
            ("ironverbs run --vfs 32 -- bash", "Start a shell on an adapter with 32 virtual functions."),
            (
                "ironverbs run --vfio 0000:c1:00.2 --address 10.0.0.2/24 -- ib_write_bw -d iron0 -x 1",
                "Start a server on a function of a real card.",
            ),
            (
                "ironverbs run --adapter /dev/shm/lossy --fault drop=1%,seed=7 -- bash",
                "Lose one frame in a hundred.",
            ),
            ("ironverbs run --clock timed -- ib_send_lat -d iron1 -x 1", "Measure in the time of a card."),
        ],
        see: &["ironverbs-adapter(1)", "ironverbs-vf(1)"],
        documents: &["adapter.md", "launcher.md", "vfio.md", "wire.md", "time.md"],
    },
    Page {
        of: "ironverbs demo",
        description: &[
            "Runs perftest's ib_read_lat twice, as server on iron1 and as client on iron2, and prints its table, after the two commands to \
             repeat it by hand.",
        ],
        see: &["ironverbs-run(1)", "ib_read_lat(1)"],
        ..NOTHING
    },
    Page {
        of: "ironverbs doctor",
        description: &[
            "Tries everything that an adapter needs. Each line is ok, limited (works less well) or missing, with the command or setting that \
             helps.",
        ],
        exit: &[
            ("0", "Nothing necessary is missing."),
            ("1", "Something is missing."),
            ("2", "The command line is invalid."),
        ],
        documents: &["adapter.md", "launcher.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter",
        description: &["Most commands create an adapter that is missing, so these are optional."],
        examples: &[
            ("ironverbs adapter create --vfs 16", "Create an adapter with 16 virtual functions."),
            ("ironverbs adapter status", "Show its programs, functions and counters."),
            ("ironverbs adapter delete", "Delete it."),
        ],
        see: &["ironverbs-run(1)"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter create",
        description: &[
            "Adds virtual functions if the adapter exists and no program has it open. Its other properties are fixed: it is an error to name \
             others than it has.",
        ],
        examples: &[
            (
                "ironverbs adapter create --vfs 16 --link-layer infiniband",
                "Create an adapter with 16 virtual functions and InfiniBand ports.",
            ),
            (
                "ironverbs adapter create --name mlx5_0 --pci 0000:3b:00.0",
                "Create one with the devices mlx5_0 to mlx5_8.",
            ),
        ],
        see: &["ironverbs-run(1)"],
        documents: &["adapter.md", "twin.md", "wire.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter status",
        description: &[
            "Only reads: no program waits, and nothing changes. Programs that have died are shown as dead.",
        ],
        examples: &[
            ("ironverbs adapter status --watch", "Print counters and rates every second."),
            ("ironverbs adapter status -o json", "Print everything as JSON."),
        ],
        documents: &["adapter.md", "limits.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter address",
        description: &[
            "Programs that open the device afterwards find the address as its GID 1. No program may have it open now.",
        ],
        examples: &[("ironverbs adapter address iron1 10.0.0.5/24", "Give iron1 the address 10.0.0.5.")],
        see: &["ironverbs-link(1)"],
        documents: &["wire.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter capture",
        description: &[
            "Writes each frame as it was sent, before the adapter's faults apply, with its time in nanoseconds. Programs are slower meanwhile.",
        ],
        examples: &[(
            "ironverbs adapter capture --seconds 5 roce.pcap",
            "Write five seconds of frames, for Wireshark.",
        )],
        see: &["ironverbs-pcap-check(1)", "tshark(1)"],
        documents: &["wire.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter fault",
        description: &[
            "Applies the plan to all frames on the adapter's wire, of programs, guests and links. At the end it prints each fault, the frame \
             that it hit, and the consequences. A fault that hit no frame is an error.",
            "Programs are slower meanwhile, and frames cannot be captured.",
        ],
        examples: &[(
            "ironverbs adapter fault plan.toml --timeline out.json",
            "Run until Ctrl-C, then print a table and write all frames as JSON.",
        )],
        see: &["ironverbs-sim(1)", "ironverbs-adapter-capture(1)"],
        documents: &["wire.md", "time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter delete",
        description: &[
            "The next program creates a new adapter. While programs are on it, --force is needed: they go on by themselves, without new ones.",
        ],
        documents: &["adapter.md", "limits.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs adapter conduct",
        description: &[
            "Advances the virtual time of programs of 'ironverbs run --clock timed' while all of them wait. The first of them starts it, and \
             it ends with the last one.",
        ],
        see: &["ironverbs-run(1)", "ironverbs-sim(1)"],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs serve",
        description: &[
            "Offers functions as PCI devices on sockets until SIGTERM or SIGINT, and prints a line for each socket once all are there.",
            "Guests are not trusted: before they look at any input, the threads drop the system calls and capabilities that they do not need.",
        ],
        exit: &[
            ("0", "It was asked to end."),
            ("1", "It cannot serve; one line on standard error gives the reason."),
            ("2", "The command line is invalid."),
            ("159", "A thread made a system call that it had dropped; a line on standard error names it."),
        ],
        environment: &[PROVIDER_ENVIRONMENT[1]],
        examples: &[
            ("ironverbs serve --plug 1=/run/iron1", "Offer iron1 to QEMU's vfio-user-pci (10.1 or later)."),
            (
                "ironverbs serve --plug 1=/run/iron1 --misbehave power-loss@doorbell=1000",
                "Offer a function that loses power after the thousandth doorbell.",
            ),
        ],
        see: &["ironverbs-trace(1)", "ironverbs-link(1)", "ironverbs-linux(1)"],
        documents: &["serve.md", "twin.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs link",
        description: &["Carries frames between the adapter's wire and the links until SIGTERM or SIGINT."],
        examples: &[
            ("ironverbs link udp:", "Send and receive RoCE v2 frames on UDP port 4791 of this host."),
            ("ironverbs link udp:10.0.0.1,peer=10.0.0.2", "The same, to one peer."),
            ("ironverbs link tap:roce0", "Connect the adapter to this host's kernel, for rxe."),
            ("ironverbs link node:/dev/shm/other --fault drop=1%", "Connect two adapters by a bad cable."),
        ],
        see: &["ironverbs-serve(1)"],
        documents: &["wire.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs linux",
        description: &[
            "Starts user-mode Linux as a program of this host, without root. Its own mlx5 driver has the physical function, and as many virtual \
             functions as its sriov_numvfs says. SIGTERM and SIGINT end COMMAND first.",
            "The package does not contain the kernel: scripts/linux-kernel.sh of the sources builds it.",
        ],
        exit: &[
            (
                "125",
                "The kernel did not start, or ended before COMMAND; one line on standard error gives the reason.",
            ),
            ("2", "The command line is invalid."),
            ("any other", "The exit status of COMMAND."),
        ],
        environment: &[
            ("TMPDIR, TMP, TEMP", "Directory of the guest's memory, if it is in memory [default: /dev/shm]."),
            ("TERM, LANG, LC_ALL, TZ, NO_COLOR", "Passed on to COMMAND."),
        ],
        files: &[(
            "$XDG_CACHE_HOME/ironverbs/linux/*/vmlinux, ~/.cache/ironverbs/linux/*/vmlinux",
            "The kernels; the newest is used.",
        )],
        examples: &[
            (
                "ironverbs linux -- sh -c 'echo 7 >/sys/class/net/eth0/device/sriov_numvfs; rdma link'",
                "Create seven virtual functions and list their RDMA devices.",
            ),
            ("ironverbs linux --memory 2G --share /srv", "Start a shell that can write to /srv."),
        ],
        see: &["ironverbs-serve(1)", "rdma(8)", "ip-link(8)"],
        documents: &["linux.md"],
    },
    Page {
        of: "ironverbs vf",
        description: &["Works on any PCI function, through sysfs. Needs root."],
        examples: &[
            (
                "ironverbs vf create 0000:c1:00.0 1 --mac 02:00:00:00:00:05",
                "Create one virtual function and print its address.",
            ),
            ("ironverbs vf bind 0000:c1:00.2", "Bind it to vfio-pci."),
            ("ironverbs bringup --vfio 0000:c1:00.2", "Inspect it."),
            ("ironverbs vf delete 0000:c1:00.0", "Delete it."),
        ],
        see: &["ironverbs-bringup(1)", "ironverbs-run(1)"],
        documents: &["vfio.md", "with-a-card.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs vf create",
        description: &["MAC, VLAN and trust are set through the net device of the physical function."],
        ..NOTHING
    },
    Page {
        of: "ironverbs vf bind",
        description: &[
            "Prints the /dev/vfio/N of the function, and the functions of the same IOMMU group that prevent its use. Needs --force for a \
             function that the machine uses.",
        ],
        ..NOTHING
    },
    Page {
        of: "ironverbs vf unbind",
        description: &["Any driver can have the function afterwards."],
        ..NOTHING
    },
    Page {
        of: "ironverbs bringup",
        description: &[
            "Goes through the programming interface of a function step by step, and prints what each step expected and found. Without --write \
             it only reads; but kernel VFIO resets a function when it is opened, so do not use it on one that is in use.",
            "It stops at the first failure, and tears down what was up.",
        ],
        exit: &[
            ("0", "All steps passed."),
            ("1", "A step failed; a line on standard error names it."),
            ("2", "The command line is invalid."),
        ],
        examples: &[
            ("ironverbs bringup --function 1 --write", "Run all steps on iron1 of the simulated adapter."),
            (
                "ironverbs bringup --vfio 0000:c1:00.2 --write --report all.txt --json all.json",
                "The same on a function of a real card, with reports.",
            ),
        ],
        see: &["ironverbs-vf(1)", "ironverbs-trace(1)"],
        documents: &["bringup.md", "with-a-card.md", "vfio.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs bench",
        description: &[
            "Runs perftest on the adapter and ucx_perftest over shared memory in turn, each side on its own CPU, and prints medians, ratios \
             and limits.",
        ],
        exit: &[
            ("0", "All values were measured and, with --check, are within the limits."),
            ("1", "A value was not measured or, with --check, misses its limit."),
            ("2", "The command line is invalid."),
        ],
        see: &["ironverbs-sim(1)", "ib_write_bw(1)"],
        documents: &["bench.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs pcap check",
        description: &[
            "Prints each RoCE v2 frame that breaks a rule of the reliable connection, what was expected and found, and the section of the \
             InfiniBand architecture with the rule. Fails if there is one.",
            "Frames are best captured where they are sent: a frame lost before the capture looks as if it was never sent. --lossy omits the \
             rules that this would break.",
        ],
        examples: &[
            (
                "ironverbs pcap check card.pcap",
                "Check a capture of a card, made by tcpdump on a mirrored port.",
            ),
            (
                "ironverbs sim write_bw --pcap model.pcap && ironverbs pcap check model.pcap",
                "Check the model.",
            ),
        ],
        see: &["ironverbs-adapter-capture(1)", "tcpdump(1)"],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs trace",
        description: &[
            "A trace is what a driver sent to a function, in order: register writes, commands and work requests. 'ironverbs serve --record' \
             and 'ironverbs bringup --record' write it.",
        ],
        examples: &[
            ("ironverbs trace show vf.stream --function 1 --compact", "Print what is the same at every run."),
            ("ironverbs trace diff card.stream model.stream", "Compare two traces."),
        ],
        see: &["ironverbs-serve(1)", "ironverbs-bringup(1)"],
        documents: &["stream.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs trace show",
        description: &["Prints a line for each event: its name, and each field that is not zero."],
        ..NOTHING
    },
    Page {
        of: "ironverbs trace diff",
        exit: &[
            ("0", "There is no difference."),
            (
                "1",
                "There is a difference, or a file cannot be read; then a line on standard error gives the reason.",
            ),
            ("2", "The command line is invalid."),
        ],
        ..NOTHING
    },
    Page {
        of: "ironverbs sim",
        description: &[
            "Runs perftest's patterns in virtual time, on the cards, slots, wires and hosts of a profile, and prints perftest's table. The \
             same options always give the same values.",
        ],
        examples: &[
            ("ironverbs sim write_lat --size 64", "WRITEs of 64 bytes back and forth."),
            ("ironverbs sim send_bw -a --profile direct-x8", "SENDs of all sizes, in a slot with 8 lanes."),
            ("ironverbs sim read_lat --waterfall 500", "The time breakdown of the 500th READ."),
        ],
        see: &["ib_send_lat(1)", "ib_write_bw(1)"],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs sim network",
        description: &[
            "Connects cards by links and switches, moves bytes between them, and prints the durations of flows, the lengths of queues, and \
             pauses, marks and losses.",
            "Each flow is a queue pair with up to four messages of 1 MiB in flight. --pattern, --flows or --matrix defines them.",
        ],
        examples: &[
            ("ironverbs sim network --pfc --dcqcn", "Eight hosts write 1 MB each to a ninth."),
            (
                "ironverbs sim network --time 60 --report incast.html",
                "The same without end, drawn with and without PFC and DCQCN.",
            ),
            (
                "ironverbs sim network --racks 4x8x2 --pattern permutation",
                "Four racks of eight hosts; each host writes to one other.",
            ),
            (
                "ironverbs sim network --topology fat.txt --flows flow.txt --fct fct.txt",
                "Files of HPCC's simulator.",
            ),
        ],
        ..NOTHING
    },
    Page {
        of: "ironverbs sim speed",
        description: &[
            "Prints the packets of virtual time that one processor simulates in a second, and the memory that this takes: the median of three \
             runs for pairs, many queue pairs, and many hosts.",
        ],
        ..NOTHING
    },
    Page {
        of: "ironverbs sim calibrate",
        description: &["Prints each published value, the model's, and the difference."],
        ..NOTHING
    },
    Page {
        of: "ironverbs cdi",
        description: &[
            "For engines with the Container Device Interface: podman, containerd, CRI-O and docker.",
        ],
        examples: &[
            (
                "ironverbs cdi generate --adapter /dev/shm/mine --output /etc/cdi/ironverbs.json",
                "Describe the adapter in /dev/shm/mine to the engines of this host.",
            ),
            (
                "podman run --device ironverbs/function=iron1 IMAGE ib_write_bw -d iron1 -x 1",
                "Run a program in a container that sees iron1.",
            ),
        ],
        see: &["ironverbs-adapter(1)", "podman-run(1)"],
        documents: &["containers.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs cdi generate",
        description: &[
            "Describes each function of the adapter as it is now, as ironverbs/function=iron1, and all together as ironverbs/function=all. The \
             description names this command, which the container runtime calls when it creates a container.",
        ],
        files: &[("/etc/cdi, /var/run/cdi", "Directories that engines read.")],
        ..NOTHING
    },
    Page {
        of: "ironverbs cdi hook",
        description: &[
            "Called by container runtimes as a createContainer hook, with the container's state on standard input. Mounts the devices below \
             the container's /sys, /dev and /etc, beside those of earlier calls.",
        ],
        ..NOTHING
    },
    Page {
        of: "ironverbs cdi runtime",
        description: &[
            "Device plugins of Kubernetes give functions by device files and PCIDEVICE_... variables, not by names of the Container Device \
             Interface. This command adds such functions to the container's configuration, and then becomes the runtime.",
            "Engines take a program without arguments for a runtime, so they get a script with this command.",
        ],
        examples: &[(
            "exec ironverbs cdi runtime --adapter /dev/shm/mine -- \"$@\"",
            "The line of such a script after #!/bin/sh; it becomes runc.",
        )],
        see: &["runc(8)", "podman-run(1)"],
        ..NOTHING
    },
    Page {
        of: "ironverbs completions",
        examples: &[(
            "ironverbs completions bash >~/.local/share/bash-completion/completions/ironverbs",
            "Install completion for bash.",
        )],
        ..NOTHING
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_of_a_command() {
        fn names(command: &Command, above: &str, found: &mut Vec<String>) {
            let name = format!("{above}{}", command.get_name());
            command.get_subcommands().for_each(|below| names(below, &format!("{name} "), found));
            found.push(name);
        }
        let mut found = Vec::new();
        names(&crate::definition(), "", &mut found);
        for page in PAGES {
            assert!(found.iter().any(|name| name == page.of), "there is no command {}", page.of);
        }
    }
}
