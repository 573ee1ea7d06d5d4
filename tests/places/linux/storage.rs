//! Files and blocks of another node, with the kernel's own clients and servers: NFS over RDMA, NVMe over RDMA.

use ironverbs_tests::linux::{CHECKS, COMPLAINTS, Place, VFS, complaints, part};

/// Shell functions of the server. `nfs FOLDER ADDRESS` exports a folder to one client, and answers the kernel's queries to mountd in
/// advance; `nvme FILE ADDRESS` exports a file as a disk at a separate address.
const SERVERS: &str = r#"
nfs() {
    mount -t nfsd nfsd /proc/fs/nfsd
    cd /proc/fs/nfsd
    # Where the server remembers its clients over a restart.
    mkdir /run/recovery
    echo /run/recovery >nfsv4recoverydir
    echo '-3 +4' >versions
    rpc=/proc/net/rpc never=2147483647
    echo "nfsd $2 $never client" >$rpc/auth.unix.ip/channel
    # Flags: any port, no subtree check, an identifier of its own; nobody; the identifier.
    echo "client $1 $never $((0x2 | 0x400 | 0x2000)) 65534 65534 0" >$rpc/nfsd.export/channel
    printf '%s\n' "client 1 \\x00000000 $never $1" >$rpc/nfsd.fh/channel
    echo 'rdma 20049' >portlist
    echo 2 >threads
    # There was no server before, whose clients may want back what they had.
    echo Y >v4_end_grace
    cd /
}
nvme() {
    mount -t configfs configfs /sys/kernel/config
    cd /sys/kernel/config/nvmet
    mkdir subsystems/disk subsystems/disk/namespaces/1 ports/1
    echo 1 >subsystems/disk/attr_allow_any_host
    # A file in memory cannot be read around the page cache.
    for setting in device_path=$1 buffered_io=1 enable=1; do
        echo ${setting#*=} >subsystems/disk/namespaces/1/${setting%%=*}
    done
    for setting in trtype=rdma adrfam=ipv4 traddr=$2 trsvcid=4420; do
        echo ${setting#*=} >ports/1/addr_${setting%%=*}
    done
    ln -s $PWD/subsystems/disk ports/1/subsystems/disk
    cd /
}
"#;

#[test]
fn files_and_blocks_of_another_node_come_by_rdma() {
    let Some(place) = Place::new() else { return };
    let _wire = place.wire(&["node", "other"], &["--vfs", "2"]);
    let vf = "numvfs 1
        net=$(ls $pci/0000:00:00.1/net)
        ip link set $net up";
    let server = format!(
        "{VFS}{COMPLAINTS}{CHECKS}{SERVERS}{vf}
        ip addr add 10.7.0.1/24 dev $net
        mkdir /run/export
        mount -t tmpfs tmpfs /run/export
        head -c 4M /dev/urandom >/run/export/file
        head -c 8M /dev/urandom >/run/disk
        cp /run/export/file /run/disk $share
        nfs /run/export 10.7.0.2
        nvme /run/disk 10.7.0.1
        say serves
        await over
        cmp /run/export/more $share/more
        cmp -n 1048576 /run/disk $share/more
        complaints"
    );
    let client = format!(
        "{VFS}{COMPLAINTS}{CHECKS}{vf}
        ip addr add 10.7.0.2/24 dev $net
        head -c 1M /dev/urandom >/run/more
        await serves
        mkdir /run/mnt
        # As mount.nfs asks the kernel.
        mount -i -t nfs4 -o addr=10.7.0.1,clientaddr=10.7.0.2,proto=rdma,port=20049,vers=4.2 10.7.0.1:/ /run/mnt
        grep nfs4 /proc/mounts
        cmp /run/mnt/file $share/file
        cp /run/more /run/mnt/more
        echo begin resources; rdma resource show; echo end resources
        umount /run/mnt

        echo transport=rdma,traddr=10.7.0.1,trsvcid=4420,nqn=disk >/dev/nvme-fabrics
        until_so test -e /dev/nvme0n1
        cat /sys/class/nvme/nvme0/transport
        cmp /dev/nvme0n1 $share/disk
        dd if=/run/more of=/dev/nvme0n1 bs=256k conv=fsync
        echo 1 >/sys/class/nvme/nvme0/delete_controller
        cp /run/more $share/more
        say over
        complaints"
    );
    let said = place.scripts(&[("node", &["--vfs", "1"], &server), ("other", &["--vfs", "1"], &client)]);
    for said in &said {
        // The server reports where it records clients, and that there are none yet.
        let beside = complaints(said).into_iter().filter(|line| !line.contains(" NFSD: "));
        assert_eq!(beside.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    assert!(said[1].contains("proto=rdma,port=20049"), "{}", said[1]);
    assert!(said[1].lines().any(|line| line == "rdma"), "{}", said[1]);
    assert!(part(&said[1], "resources").contains(" cm_id 1 "), "{}", said[1]);
}
