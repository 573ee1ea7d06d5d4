//! Programs by others as their own manifests start them, from images that lie as theirs do.

use super::cluster::Cluster;

/// Images of programs that look for PCI devices have this list of their names.
pub const PCI_IDS: (&str, &str) = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids");

/// sriov-network-device-plugin's image has these files, at these paths.
pub const SRIOV_PLUGIN: [(&str, &str); 3] =
    [("sriovdp", "/usr/bin/sriovdp"), ("entrypoint.sh", "/entrypoint.sh"), PCI_IDS];

/// An image as guides to RDMA on Kubernetes name it: without a tag, so that each container that is started pulls it.
const TOOLS: &str = "mellanox/rping-test";

impl Cluster {
    /// Gives the nodes an image of Debian's programs for pods, [`TOOLS`], which sleeps.
    pub fn tools(&self) {
        let programs =
            ["ib_read_lat", "ib_send_lat", "ib_send_bw", "ib_write_bw", "rping", "rdma", "ip", "getent"];
        self.load(TOOLS, &programs, &["sleep", "100000"]);
    }

    /// A pod of [`TOOLS`] finds a service by the name that pods of all namespaces know it by.
    pub fn names_are_found_in(&self, pod: &str) {
        let found = self.exec(pod, &["getent", "hosts", "kubernetes.default"]);
        let words: Vec<&str> = found.split_whitespace().collect();
        assert_eq!(words, ["10.96.0.1", "kubernetes.default.svc.cluster.local"]);
    }

    /// Starts multus on all nodes, which give pods its networks from then on: those that come before it has written its file have none.
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

    /// Makes `count` VFs of a PF of each node, which sriov-network-device-plugin offers as `resource`.
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
            // It puts these into its node's folder of CNI plugins.
            ("spiderpool", "/usr/bin/spiderpool"),
            ("coordinator", "/usr/bin/coordinator"),
            ("ifacer", "/usr/bin/ifacer"),
            // It runs these to count RDMA.
            ("rdma", ""),
            ("ip", ""),
        ];
        self.image(&image("agent"), &agent, &["spiderpool-agent"]);
        let controller = [
            ("spiderpool-controller", "/usr/bin/spiderpool-controller"),
            ("spiderpool-init", "/usr/bin/spiderpool-init"),
        ];
        self.image(&image("controller"), &controller, &["spiderpool-controller"]);
        // Programs that are installed by themselves are not wanted of the chart.
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

    /// Makes the configuration of a device plugin.
    fn configure(&self, name: &str, json: &str) {
        self.apply(&format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: kube-system}}\ndata:\n  config.json: '{json}'\n"
        ));
    }
}

/// A network for multus, `config` of which is a list of plugins.
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

/// A pod that sleeps on a node, with one of each resource, and `networks` as multus reads them, which may be none.
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
