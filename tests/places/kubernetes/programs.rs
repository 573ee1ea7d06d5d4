//! Third-party programs, started by their own manifests from images with the original paths.

use super::cluster::Cluster;

/// The list of PCI names, which images of programs that search for PCI devices contain.
pub const PCI_IDS: (&str, &str) = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids");

/// The files of sriov-network-device-plugin's image, with their paths.
pub const SRIOV_PLUGIN: [(&str, &str); 3] =
    [("sriovdp", "/usr/bin/sriovdp"), ("entrypoint.sh", "/entrypoint.sh"), PCI_IDS];

/// An image without a tag, as in guides to RDMA on Kubernetes: every start of a container pulls it.
const TOOLS: &str = "mellanox/rping-test";

impl Cluster {
    /// Loads the image [`TOOLS`] of Debian's programs into the nodes. Its containers sleep.
    pub fn tools(&self) {
        let programs =
            ["ib_read_lat", "ib_send_lat", "ib_send_bw", "ib_write_bw", "rping", "rdma", "ip", "getent"];
        self.load(TOOLS, &programs, &["sleep", "100000"]);
    }

    /// Checks that a pod of [`TOOLS`] resolves a service by the name that is valid in all namespaces.
    pub fn names_are_found_in(&self, pod: &str) {
        let found = self.exec(pod, &["getent", "hosts", "kubernetes.default"]);
        let words: Vec<&str> = found.split_whitespace().collect();
        assert_eq!(words, ["10.96.0.1", "kubernetes.default.svc.cluster.local"]);
    }

    /// Starts multus on all nodes, and waits until it has written its file: pods created earlier would have no networks.
    pub fn multus(&self) {
        let programs = [
            ("multus", "/usr/src/multus-cni/bin/multus"),
            ("passthru-cni", "/usr/src/multus-cni/bin/passthru"),
            ("thin_entrypoint", "/thin_entrypoint"),
            ("install_multus", "/install_multus"),
        ];
        self.image("ghcr.io/k8snetworkplumbingwg/multus-cni:snapshot", &programs, &["/thin_entrypoint"]);
        self.apply(&self.manifest("multus-daemonset.yml"));
        for node in self.nodes() {
            self.until(&format!("multus on node {node}"), 90, || {
                let (written, said) = self.tried_on(node, &["ls", "/etc/cni/net.d/00-multus.conflist"]);
                if written { Ok(()) } else { Err(said) }
            });
        }
    }

    /// Starts sriov-network-device-plugin on every node, with `pools` of its configuration.
    pub fn sriov_plugin(&self, pools: &str) {
        let name = "ghcr.io/k8snetworkplumbingwg/sriov-network-device-plugin:v3.4.0";
        self.image(name, &SRIOV_PLUGIN, &["/entrypoint.sh"]);
        self.configure("sriovdp-config", pools);
        self.apply(&self.manifest("sriovdp-daemonset.yaml"));
    }

    /// Creates `count` VFs of a PF on each node, which sriov-network-device-plugin offers as `resource`.
    pub fn offer_vfs(&self, pf: &str, resource: &str, count: u32) {
        for node in self.nodes() {
            self.on(node, &["sh", "-c", &format!("echo {count} >/sys/class/net/{pf}/device/sriov_numvfs")]);
        }
        let (prefix, name) = resource.split_once('/').expect("a resource's prefix");
        self.sriov_plugin(&format!(
            r#"{{"resourceList": [{{"resourceName": "{name}", "resourcePrefix": "{prefix}",
                "selectors": {{"vendors": ["15b3"], "drivers": ["mlx5_core"], "isRdma": true}}}}]}}"#
        ));
        for node in self.nodes() {
            self.until_allocatable(&format!("node-{node}"), resource, count);
        }
    }

    /// Installs Spiderpool by its chart, with metrics of RDMA.
    pub fn spiderpool(&self) {
        let image = |program| format!("ghcr.io/spidernet-io/spiderpool/spiderpool-{program}:v1.1.0");
        let agent = [
            ("spiderpool-agent", "/usr/bin/spiderpool-agent"),
            // The agent installs these into its node's folder of CNI plugins.
            ("spiderpool", "/usr/bin/spiderpool"),
            ("coordinator", "/usr/bin/coordinator"),
            ("ifacer", "/usr/bin/ifacer"),
            // The agent runs these to count RDMA.
            ("rdma", ""),
            ("ip", ""),
        ];
        self.image(&image("agent"), &agent, &["spiderpool-agent"]);
        let controller = [
            ("spiderpool-controller", "/usr/bin/spiderpool-controller"),
            ("spiderpool-init", "/usr/bin/spiderpool-init"),
        ];
        self.image(&image("controller"), &controller, &["spiderpool-controller"]);
        // Without the chart's own copies of programs that are installed separately.
        self.helm(
            "spiderpool",
            "kube-system",
            "charts/spiderpool",
            &[
                "ipam.enableIPv6=false",
                "rdma.rdmaSharedDevicePlugin.install=false",
                "multus.multusCNI.install=false",
                "plugins.installRdmaCNI=false",
                "plugins.installOvsCNI=false",
                "plugins.installibSriovCNI=false",
                "plugins.installIpoibCNI=false",
                "spiderpoolController.podResourceInject.enabled=false",
                "spiderpoolAgent.prometheus.enabled=true",
                "spiderpoolAgent.prometheus.enabledRdmaMetric=true",
            ],
        );
    }

    /// Starts k8s-rdma-shared-dev-plugin on every node.
    pub fn shared_plugin(&self, resources: &str) {
        let programs = [("k8s-rdma-shared-dp", "/bin/k8s-rdma-shared-dp"), PCI_IDS];
        let name = "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:latest";
        self.image(name, &programs, &["/bin/k8s-rdma-shared-dp"]);
        self.configure("rdma-devices", resources);
        self.apply(&self.manifest("base/daemonset.yaml"));
    }

    /// Creates the configuration of a device plugin.
    fn configure(&self, name: &str, json: &str) {
        self.apply(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: kube-system}}\ndata:\n  config.json: '{json}'\n"
        ));
    }
}

/// A network for multus with a list of plugins.
pub fn network(name: &str, resource: &str, plugins: &str) -> String {
    format!(
        "apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: {name}
  annotations: {{k8s.v1.cni.cncf.io/resourceName: {resource}}}
spec:
  config: '{{\"cniVersion\": \"0.3.1\", \"name\": \"{name}\", \"plugins\": [{plugins}]}}'
---
"
    )
}

/// A pod that sleeps on a node, with one of each resource and with these `networks` in multus's notation, which may be empty.
pub fn pod(name: &str, node: &str, resources: &[&str], networks: &str) -> String {
    let limits = resources.iter().map(|resource| format!("{resource}: 1")).collect::<Vec<_>>().join(", ");
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{k8s.v1.cni.cncf.io/networks: '{networks}'}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  terminationGracePeriodSeconds: 0
  containers:
  - name: tools
    image: {TOOLS}
    securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}
    resources: {{limits: {{{limits}}}}}
---
"
    )
}
