//! Text of the manual beyond the definition of the command line.

/// A term and its explanation.
pub type Entry = (&'static str, &'static str);

/// The directory of the packaged pages of `docs/`.
pub const DOCUMENTS: &str = "/usr/share/doc/ironverbs/docs";

/// The page of one command.
#[derive(Clone, Copy)]
pub struct Page {
    /// The name, such as `ironverbs-node-status`.
    pub of: &'static str,
    /// Paragraphs; empty if the definition suffices.
    pub description: &'static [&'static str],
    /// Exit statuses; empty for the usual ones.
    pub exit: &'static [Entry],
    /// Environment variables in addition to those of all commands on a node.
    pub environment: &'static [Entry],
    /// Files in addition to those of all commands on a node.
    pub files: &'static [Entry],
    /// Command lines and their effects.
    pub examples: &'static [Entry],
    /// Pages of other commands.
    pub see: &'static [&'static str],
    /// Pages of `docs/`.
    pub documents: &'static [&'static str],
}

const NOTHING: Page = Page {
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
    ("0", "The command did what it was asked to."),
    ("1", "It did not; one line on standard error says why."),
    ("2", "The command line cannot be understood."),
];

/// The environment variables that affect every command with `--node`.
pub const NODE_ENVIRONMENT: &[Entry] = &[
    (
        "IRONVERBS_NODE",
        "Directory of the node where --node names none. 'ironverbs run' sets it for the programs that it starts.",
    ),
    ("XDG_RUNTIME_DIR", "Directory in which the user's own node is made, if it is in memory."),
];

/// The directory of a node.
pub const NODE_FILES: &[Entry] = &[(
    "$XDG_RUNTIME_DIR/ironverbs, /dev/shm/ironverbs-UID, /tmp/ironverbs-UID",
    "The user's node where neither --node nor IRONVERBS_NODE names one: the first of these that is in memory. It stays until \
     'ironverbs node reset' or a restart of the machine.",
)];

/// Environment variables of programs that use the node's devices.
const PROVIDER_ENVIRONMENT: [Entry; 3] = [
    ("IRONVERBS_LEND", "0: memory that programs register is never lent to the node."),
    ("IRONVERBS_NO_DIRECT_COPY", "1: this program neither copies from nor to the memory of others."),
    (
        "IRONVERBS_MEMLOCK",
        "0: programs register as much memory as there is, whatever their RLIMIT_MEMLOCK is.",
    ),
];

/// One page for each command.
pub const PAGES: &[Page] = &[
    Page {
        of: "ironverbs",
        description: &[
            "ironverbs lets unmodified programs use RDMA verbs on a simulated ConnectX-5 with up to 127 virtual functions, or on a function of \
             a real card that is bound to vfio-pci. All of it is in user space: no kernel module, no daemon and, where the host allows user \
             namespaces, no root.",
            "Programs that are run on one node share one adapter. A node is a directory in memory, by default one for each user. iron0 is its \
             physical function, iron1 and on are its virtual functions. Virtual function I answers to 127.0.0.(I+1).",
            "Only programs that 'ironverbs run' starts, and their children, see these devices. Nothing changes for any other program: the \
             libibverbs of the system stays in place, and finds the devices it found before.",
        ],
        environment: NODE_ENVIRONMENT,
        files: &[
            (
                "/usr/lib/ironverbs/libironverbs_time.so",
                "What stands in for the clocks of programs in virtual time.",
            ),
            (
                "/usr/lib/ironverbs/libironverbs_provider.so, /usr/lib/ironverbs/libironverbs_loader.so",
                "The provider, by which libibverbs reaches the devices, and what libibverbs loads to reach the provider. A command that \
                 was not installed by a package looks beside itself too.",
            ),
            ("/usr/share/doc/ironverbs/", "README.md, and in docs/ the pages that this manual refers to."),
            NODE_FILES[0],
        ],
        examples: &[
            ("ironverbs demo", "Shows ib_read_lat between two virtual functions."),
            (
                "ironverbs run -- ib_write_bw -d iron1 -x 1",
                "A server on iron1; -x 1 is the GID with its IP address.",
            ),
            ("ironverbs run -- ib_write_bw -d iron2 -x 1 127.0.0.2", "Its client on iron2."),
            ("ironverbs doctor", "Says what this host lacks."),
        ],
        see: &["ibv_devinfo(1)", "ib_write_bw(1)", "rdma(8)"],
        documents: &["node.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-run",
        description: &[
            "Prepares a view of the system in which the devices are there, and becomes PROGRAM in it. The view is a mount namespace: /sys, \
             /dev/infiniband and /etc/libibverbs.d have the devices beside what they had. It ends with the last program in it. A small \
             process beside the program answers what is asked by RDMA netlink, and keeps counters below /sys.",
            "The devices are those of a node, which is made if there is none, and of those that --adapter names, or the functions that \
             --bdf and --vfio-user name. In a pod that was given functions bound to VFIO, they are these.",
            "With --clock timed, PROGRAM lives in the time of a card: its clocks say what it would take there, at every run the same.",
        ],
        exit: &[
            ("125", "The devices cannot be shown; one line on standard error says why."),
            ("126", "PROGRAM cannot be executed."),
            ("127", "PROGRAM cannot be found."),
            ("2", "The command line cannot be understood."),
            ("any other", "The exit status of PROGRAM, which may be any of the above too."),
        ],
        environment: &[
            ("RDMAV_DRIVERS", "Set for PROGRAM: the provider of the devices, and then what was in it."),
            PROVIDER_ENVIRONMENT[0],
            PROVIDER_ENVIRONMENT[1],
            PROVIDER_ENVIRONMENT[2],
            (
                "MLX_CQ_ALLOC_TYPE, MLX_QP_ALLOC_TYPE, MLX_SRQ_ALLOC_TYPE, MLX_RWQ_ALLOC_TYPE",
                "Read in PROGRAM as the mlx5 provider reads them: where its queues lie.",
            ),
            (
                "IRONVERBS_FUNCTIONS, IRONVERBS_NETWORK_STATUS, PCIDEVICE_*_INFO",
                "Functions that a pod was given, and their addresses.",
            ),
        ],
        files: &[(
            "/etc/podnetinfo/annotations, /var/run/kubernetes.io/dra-device-attributes",
            "Where else a pod finds its functions and addresses.",
        )],
        examples: &[
            ("ironverbs run -- ibv_devinfo -v", "All that libibverbs tells of the devices."),
            (
                "ironverbs run --vfs 32 -- bash",
                "A shell whose programs see the devices of a node with 32 virtual functions.",
            ),
            (
                "ironverbs run --bdf 0000:c1:00.2 --address 10.0.0.2/24 -- ib_write_bw -d iron0 -x 1",
                "A server on a function of a real card.",
            ),
            (
                "ironverbs run --wire-faults drop=1%,seed=7 -- bash",
                "A new node that loses a frame in a hundred.",
            ),
        ],
        see: &["ironverbs-node(1)", "ironverbs-vf(1)"],
        documents: &["node.md", "launcher.md", "vfio.md", "wire.md"],
    },
    Page {
        of: "ironverbs-demo",
        description: &[
            "Runs ib_read_lat of perftest twice: a server on iron1 and a client on iron2. Its table appears on standard output. The two \
             commands are printed first, so that they can be repeated by hand.",
        ],
        see: &["ironverbs-run(1)", "ib_read_lat(1)"],
        documents: &["node.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-doctor",
        description: &[
            "Tries everything that a node needs, and says in a line each what is there (ok), what works less well (limited), and what is \
             missing, with the command or setting that brings it.",
        ],
        exit: &[
            ("0", "Nothing that is needed is missing."),
            ("1", "Something is, and 'missing' stands in its line."),
            ("2", "The command line cannot be understood."),
        ],
        documents: &["node.md", "launcher.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-serve",
        description: &[
            "Offers functions of a node as PCI devices, each on a socket, and carries frames between the node's wire and the links. It works until \
             SIGTERM or SIGINT, and prints a line for each socket once all are there.",
            "Guests are not trusted: the threads of the server give up the system calls and capabilities they do not need before they look at \
             anything that comes.",
        ],
        exit: &[
            ("0", "It was asked to end."),
            ("1", "It cannot serve; one line on standard error says why."),
            ("2", "The command line cannot be understood."),
            (
                "159",
                "A thread asked for a system call that its jail refuses; a line on standard error says which.",
            ),
        ],
        environment: &[PROVIDER_ENVIRONMENT[1]],
        examples: &[
            ("ironverbs serve --plug 1=/run/iron1", "iron1 for QEMU's vfio-user-pci, 10.1 or later."),
            ("ironverbs serve --link udp:", "The node's RoCE v2 frames on UDP port 4791 of this host."),
            (
                "ironverbs serve --plug 1=/run/iron1 --misbehave power-loss@doorbell=1000",
                "A function whose power goes behind the thousandth doorbell.",
            ),
        ],
        see: &["ironverbs-stream(1)", "ironverbs-linux(1)"],
        documents: &["serve.md", "wire.md", "twin.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-linux",
        description: &[
            "Starts user-mode Linux as a program of this host. Its own mlx5 driver has the node's physical function, and virtual functions once \
             its sriov_numvfs says so. No root is needed. SIGTERM and SIGINT end COMMAND first.",
            "The kernel is not part of the package: scripts/linux-kernel.sh of the sources builds it, or --kernel names it.",
        ],
        exit: &[
            (
                "125",
                "The kernel cannot be started, or ended before COMMAND; one line on standard error says why.",
            ),
            ("2", "The command line cannot be understood."),
            ("any other", "The exit status of COMMAND."),
        ],
        environment: &[
            (
                "TMPDIR, TMP, TEMP",
                "Where the memory of the guest is, if that is in memory; else it is in /dev/shm.",
            ),
            ("TERM, LANG, LC_ALL, TZ, NO_COLOR", "Passed on to COMMAND."),
        ],
        files: &[(
            "$XDG_CACHE_HOME/ironverbs/linux/*/vmlinux, ~/.cache/ironverbs/linux/*/vmlinux",
            "The kernels; the one made last is taken.",
        )],
        examples: &[
            (
                "ironverbs linux -- sh -c 'echo 7 >/sys/class/net/eth0/device/sriov_numvfs; rdma link'",
                "Makes seven virtual functions and lists their RDMA devices.",
            ),
            ("ironverbs linux --memory 2G --share /srv", "A shell, whose changes below /srv stay."),
        ],
        see: &["ironverbs-serve(1)", "rdma(8)", "ip-link(8)"],
        documents: &["linux.md"],
    },
    Page {
        of: "ironverbs-node",
        description: &[
            "Most commands make a node where there is none. These make one beforehand, show what is on it, and remove it.",
        ],
        see: &["ironverbs-run(1)"],
        documents: &["node.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-node-create",
        description: &[
            "Makes a node, or adds virtual functions to one on which no program has any open. What else a node is made with it keeps: \
             naming something else is an error, and 'ironverbs node reset' comes first.",
        ],
        examples: &[
            (
                "ironverbs node create --vfs 16 --link-layer infiniband",
                "A node of sixteen virtual functions, whose ports speak InfiniBand.",
            ),
            (
                "ironverbs node create --name mlx5_0 --pci 0000:3b:00.0",
                "A node whose devices programs call mlx5_0 to mlx5_8.",
            ),
        ],
        see: &["ironverbs-run(1)"],
        documents: &["node.md", "twin.md", "wire.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-node-conduct",
        description: &[
            "Programs of 'ironverbs run --clock timed' live in virtual time: where they would wait, this process lets the next thing happen. It is \
             started by the first of them, and ends when there are none any more.",
        ],
        see: &["ironverbs-run(1)", "ironverbs-sim(1)"],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-node-address",
        description: &[
            "The address becomes GID 1 of the device for programs that open it afterwards. No program may have the device open.",
        ],
        examples: &[("ironverbs node address iron1 10.0.0.5/24", "iron1 answers to 10.0.0.5.")],
        see: &["ironverbs-serve(1)"],
        documents: &["wire.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-node-capture",
        description: &[
            "Every frame is written as it was sent, before what --wire-faults does to it, with its time in nanoseconds. While a capture runs, \
             programs on the node are slower.",
        ],
        examples: &[(
            "ironverbs node capture --seconds 5 roce.pcap",
            "Five seconds of frames, for tshark or Wireshark.",
        )],
        see: &["tshark(1)"],
        documents: &["wire.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-node-faults",
        description: &[
            "All frames on the node's wire, of whatever program, guest or link, go through this process, which lets the plan befall them. At the \
             end it says which frame each fault befell and what followed. A fault that found no frame is an error.",
            "While it runs, programs on the node are slower, and nobody can capture.",
        ],
        examples: &[(
            "ironverbs node faults plan.toml --timeline out.json",
            "Until Ctrl-C; then a table, and all frames as JSON.",
        )],
        see: &["ironverbs-sim(1)", "ironverbs-node-capture(1)"],
        documents: &["wire.md", "time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-node-status",
        description: &[
            "Looks without taking part: nobody waits for it, and nothing changes. Programs that have died are shown as dead.",
        ],
        documents: &["node.md", "limits.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-node-reset",
        description: &[
            "A node with programs on it is left alone, unless --force is given: these go on by themselves, without newcomers.",
        ],
        documents: &["node.md", "limits.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-cdi",
        description: &[
            "Container engines that know the Container Device Interface (podman, containerd, CRI-O, docker) give a device to a container \
             as a file describes it. Of a node's devices 'ironverbs cdi generate' writes that file.",
        ],
        see: &["ironverbs-node(1)", "podman-run(1)"],
        documents: &["containers.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-cdi-generate",
        description: &[
            "The description names every function of the node as it is now, as ironverbs/function=iron1, and all of them together as \
             ironverbs/function=all. It names this command too, which the container runtime calls while it makes a container.",
        ],
        files: &[("/etc/cdi, /var/run/cdi", "Where engines look for descriptions.")],
        examples: &[
            (
                "ironverbs cdi generate --node /dev/shm/mine --output /etc/cdi/ironverbs.json",
                "Describes the node in /dev/shm/mine to the engines of this host.",
            ),
            (
                "podman run --device ironverbs/function=iron1 IMAGE ib_write_bw -d iron1 -x 1",
                "Runs a program in a container that sees iron1.",
            ),
        ],
        see: &["ironverbs-node-create(1)", "podman-run(1)"],
        documents: &["containers.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-cdi-hook",
        description: &[
            "Container runtimes call it as a createContainer hook, with the container's state on standard input. It mounts what the container is \
             to see of the devices below the container's /sys, /dev and /etc, beside what an earlier call has shown there.",
        ],
        documents: &["containers.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-cdi-runtime",
        description: &[
            "Device plugins of Kubernetes give functions by their device files and by variables PCIDEVICE_..., not by names of the Container \
             Device Interface. Where a container is made that was given functions of the node so, its configuration gets what \
             'ironverbs cdi generate' says of them; then this command becomes the runtime. All else passes through as it is.",
            "Engines take a program without arguments for a runtime, so they get a script that runs this command.",
        ],
        examples: &[(
            "exec ironverbs cdi runtime --node /dev/shm/mine -- \"$@\"",
            "The one line of such a script, behind #!/bin/sh; it becomes runc.",
        )],
        see: &["runc(8)", "podman-run(1)"],
        documents: &["containers.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-vf",
        description: &["Works on any PCI function, by sysfs, and takes root."],
        examples: &[
            (
                "ironverbs vf create 0000:c1:00.0 1 --mac 02:00:00:00:00:05",
                "Makes a virtual function, and prints its address.",
            ),
            ("ironverbs vf bind 0000:c1:00.2", "Gives it to vfio-pci."),
            ("ironverbs bringup --bdf 0000:c1:00.2", "Looks at it."),
        ],
        see: &["ironverbs-bringup(1)", "ironverbs-run(1)"],
        documents: &["vfio.md", "with-a-card.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-vf-create",
        description: &[
            "MAC, VLAN and trust are set through the net device of the physical function. --mac given again is the next one's.",
        ],
        documents: &["vfio.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-vf-bind",
        description: &[
            "Names the functions of the same IOMMU group that are in the way, and the file /dev/vfio/N that the function became. A function \
             that the machine uses is left alone, unless --force is given.",
        ],
        documents: &["vfio.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-vf-unbind",
        description: &["Afterwards any driver may have the function again."],
        documents: &["vfio.md"],
        ..NOTHING
    },
    Page { of: "ironverbs-vf-list", documents: &["vfio.md"], ..NOTHING },
    Page {
        of: "ironverbs-bringup",
        description: &[
            "Goes through the programming interface of a function in its order, and says of every step what was read and what was expected. \
             Without --write it looks only; but kernel VFIO resets a function when it is opened, so take none that is in use.",
            "After the first failure the rest is not tried, and what was up is torn down.",
        ],
        exit: &[
            ("0", "No step failed."),
            ("1", "A step failed; a line on standard error names it and what was seen."),
            ("2", "The command line cannot be understood."),
        ],
        examples: &[
            ("ironverbs bringup --function 1 --write", "All steps, on iron1 of the simulated node."),
            (
                "ironverbs bringup --bdf 0000:c1:00.2 --write --report all.txt --json all.json",
                "The same on a function of a real card, with reports.",
            ),
        ],
        see: &["ironverbs-vf(1)", "ironverbs-stream(1)"],
        documents: &["bringup.md", "with-a-card.md", "vfio.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-bench",
        description: &[
            "Runs perftest on the node and ucx_perftest over shared memory in turn, each side on a CPU of its own, and prints medians, ratios \
             and whether they are within the floors of the project.",
        ],
        exit: &[
            ("0", "All was measured and, with --check, every floor was met."),
            ("1", "Something could not be measured or, with --check, a floor was missed."),
            ("2", "The command line cannot be understood."),
        ],
        see: &["ironverbs-sim(1)", "ib_write_bw(1)"],
        documents: &["bench.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-check",
        description: &[
            "Reads a capture of RoCE v2 and says of each frame that breaks a rule of the reliable connection what was expected and what was \
             found, with the section of the InfiniBand architecture that has the rule. It fails if there is one.",
            "A capture is best taken where frames are sent. What was lost before it was captured looks as if it had never been sent: \
             --lossy leaves out the rules that this would break.",
        ],
        examples: &[
            ("ironverbs check card.pcap", "A capture of a card, by tcpdump on a mirrored port."),
            ("ironverbs sim write_bw --pcap model.pcap && ironverbs check model.pcap", "One of the model."),
        ],
        see: &["ironverbs-node-capture(1)", "tcpdump(1)"],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-sim",
        description: &[
            "Runs perftest's patterns in virtual time, on cards, slots, wires and hosts that a profile describes, and prints what perftest \
             would print there. The same options give the same figures at every run.",
        ],
        examples: &[
            ("ironverbs sim write_lat --size 64", "WRITEs of 64 bytes to and fro."),
            ("ironverbs sim send_bw -a --profile direct-x8", "SENDs of all sizes, in a slot of 8 lanes."),
            ("ironverbs sim read_lat --waterfall 500", "What the 500th READ took its time for."),
        ],
        see: &["ib_send_lat(1)", "ib_write_bw(1)"],
        documents: &["time.md"],
        ..NOTHING
    },
    Page { of: "ironverbs-sim-send_lat", see: &["ib_send_lat(1)"], documents: &["time.md"], ..NOTHING },
    Page { of: "ironverbs-sim-write_lat", see: &["ib_write_lat(1)"], documents: &["time.md"], ..NOTHING },
    Page { of: "ironverbs-sim-read_lat", see: &["ib_read_lat(1)"], documents: &["time.md"], ..NOTHING },
    Page { of: "ironverbs-sim-atomic_lat", see: &["ib_atomic_lat(1)"], documents: &["time.md"], ..NOTHING },
    Page { of: "ironverbs-sim-send_bw", see: &["ib_send_bw(1)"], documents: &["time.md"], ..NOTHING },
    Page { of: "ironverbs-sim-write_bw", see: &["ib_write_bw(1)"], documents: &["time.md"], ..NOTHING },
    Page { of: "ironverbs-sim-read_bw", see: &["ib_read_bw(1)"], documents: &["time.md"], ..NOTHING },
    Page { of: "ironverbs-sim-atomic_bw", see: &["ib_atomic_bw(1)"], documents: &["time.md"], ..NOTHING },
    Page {
        of: "ironverbs-sim-report",
        description: &[
            "Runs what the page shows, and writes it. The page needs no network, and is the same at every run.",
        ],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-sim-network",
        description: &[
            "Joins cards of a profile by links and switches, moves bytes between them, and prints how long each flow took, how long queues \
             got, who was paused, and what was marked or lost. The same options give the same outcome at every run.",
            "Without --flows or --matrix the pattern says who writes to whom. A flow is a queue pair of its own, which has up to four messages \
             of a MiB under way.",
        ],
        examples: &[
            ("ironverbs sim network --pfc --dcqcn", "Eight hosts write a MB each to a ninth."),
            (
                "ironverbs sim network --time 60 --report incast.html",
                "The same without an end, drawn with and without PFC and DCQCN.",
            ),
            (
                "ironverbs sim network --racks 4x8x2 --pattern permutation",
                "Four racks of eight hosts, each of which writes to one other.",
            ),
            (
                "ironverbs sim network --topology fat.txt --flows flow.txt --fct fct.txt",
                "Files of HPCC's simulator.",
            ),
        ],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-sim-speed",
        description: &[
            "Prints how many packets of virtual time this machine makes in a second of one processor, for pairs, many queue pairs and many \
             hosts, and the most memory that took. Each row is the middle one of three runs.",
        ],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-sim-calibrate",
        description: &["Prints each figure that was published, what the model has, and how far that is off."],
        documents: &["time.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-stream",
        description: &[
            "A stream is what a driver sends to a function, in order: writes of registers, commands, work requests. 'ironverbs serve --record' and \
             'ironverbs bringup --record' write it to a file.",
        ],
        see: &["ironverbs-serve(1)", "ironverbs-bringup(1)"],
        documents: &["stream.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-stream-show",
        description: &["Prints a line for each event: its name, and each field that is not zero."],
        examples: &[(
            "ironverbs stream show vf.stream --function 1 --compact",
            "What is the same at every run, of function 1.",
        )],
        documents: &["stream.md"],
        ..NOTHING
    },
    Page {
        of: "ironverbs-stream-diff",
        description: &["Prints what differs between A and B."],
        exit: &[
            ("0", "Nothing differs."),
            ("1", "Something differs, or a file cannot be read; then a line on standard error says why."),
            ("2", "The command line cannot be understood."),
        ],
        documents: &["stream.md"],
        ..NOTHING
    },
];
