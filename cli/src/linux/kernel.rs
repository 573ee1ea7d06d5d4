//! Selection of the kernel, and its command line.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use node::dir;

use super::adapters::Plug;

/// The device number on the virtual bus, as in packaging/linux/config.
const BUS_DEVICE: u32 = 1234;

/// Memory size of a guest in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(u64);

impl Memory {
    /// With less memory, the guest's programs are killed during startup. It has room for a PF and the usual VFs.
    const LEAST: u64 = 256 << 20;
    /// Default for a guest with few functions.
    const USUAL: u64 = 1 << 30;
    /// Memory that each further VF takes once it is enabled, mostly for command buffers of its driver.
    const PER_VF: u64 = 8 << 20;
    /// The windows of the bus begin above this.
    const MOST: u64 = 3840 << 20;

    /// The size for a guest with `functions` functions, of which all may be enabled: `asked`, or a default.
    ///
    /// # Errors
    /// Linux would run out of memory when they are.
    pub fn with(functions: usize, asked: Option<Self>) -> Result<Self, String> {
        let least = Self::LEAST + Self::PER_VF * functions.saturating_sub(8) as u64;
        match asked {
            Some(asked) if asked.0 < least => Err(format!(
                "expected {}M or more for {functions} functions, found {}M: --memory",
                least >> 20,
                asked.0 >> 20
            )),
            asked => Ok(asked.unwrap_or(Self(least.max(Self::USUAL)))),
        }
    }

    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, shift) = match text.strip_suffix(['G', 'g']) {
            Some(number) => (number, 30),
            None => (text.strip_suffix(['M', 'm']).unwrap_or_default(), 20),
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if (Self::LEAST..=Self::MOST).contains(&bytes) => Ok(Self(bytes)),
            _ => Err(format!(
                "expected {}M to {}M, such as 512M or 2G, found '{text}'",
                Self::LEAST >> 20,
                Self::MOST >> 20
            )),
        }
    }
}

/// The script that builds kernels: the package's, if this command is installed, else that of the sources.
fn maker() -> PathBuf {
    const SCRIPT: &str = "scripts/linux-kernel.sh";
    let command = env::current_exe().and_then(fs::canonicalize).unwrap_or_default();
    let installed = command.ancestors().nth(2).map(|prefix| prefix.join("share/ironverbs").join(SCRIPT));
    installed.filter(|script| script.is_file()).unwrap_or(SCRIPT.into())
}

/// The specified kernel, or the last one that scripts/linux-kernel.sh built.
pub fn find(named: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(named) = named {
        let full = fs::canonicalize(named)
            .map_err(|e| format!("cannot read the kernel {}: {e}", named.display()))?;
        return Ok(full);
    }
    let Some(room) = room() else {
        return Err("expected HOME to be set, to look for a kernel below it".into());
    };
    newest(&room).ok_or_else(|| {
        format!(
            "found no kernel in {}: '{} build' makes one, --kernel names one",
            room.display(),
            maker().display()
        )
    })
}

fn room() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("ironverbs/linux"))
}

fn newest(room: &Path) -> Option<PathBuf> {
    let kernels = fs::read_dir(room).ok()?.flatten().map(|entry| entry.path().join("vmlinux"));
    let dated = kernels.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)));
    dated.max().map(|(_, path)| path)
}

/// The directory where user-mode Linux keeps a guest's memory, in a deleted file.
pub fn memory_place() -> PathBuf {
    let named = ["TMPDIR", "TMP", "TEMP"].iter().find_map(env::var_os).map(PathBuf::from);
    named.filter(|place| dir::in_memory(place)).unwrap_or_else(|| "/dev/shm".into())
}

/// The parameters of a kernel's command line.
pub struct Boot<'a> {
    pub kernel: &'a Path,
    /// The folder that contains the first program.
    pub world: &'a Path,
    /// The functions of its bus.
    pub plugs: &'a [Plug],
    pub cpus: u8,
    pub memory: Memory,
}

impl Boot<'_> {
    /// Builds the command; `lines` are the arguments for the guest's terminals.
    pub fn command(&self, lines: &[String]) -> Command {
        let mut command = Command::new(self.kernel);
        command.args(self.arguments(lines)).env("TMPDIR", memory_place());
        command
    }

    fn arguments(&self, lines: &[String]) -> Vec<String> {
        let world = self.world.display();
        let mut arguments = vec![
            format!("mem={}M", self.memory.bytes() >> 20),
            format!("ncpus={}", self.cpus),
            // Not on the host's /dev, which may contain this command's folder.
            "root=/dev/root rootfstype=hostfs rw devtmpfs.mount=0".into(),
            format!("init={world}/init"),
            format!("uml_dir={world}/uml umid=guest"),
            // One host system call for each guest system call, where ptrace takes four.
            "seccomp=on".into(),
            "con=null".into(),
            // A command of the adapter may wait for a server that is starved on a busy machine.
            "virtio_pcidev.max_delay_us=20000000".into(),
            // Unloading a driver waits for the end of all RCU readers some twenty times, each time for ticks of idle processors unless
            // these are queried at once.
            "rcupdate.rcu_expedited=1 rcutree.jiffies_till_first_fqs=0 rcutree.jiffies_till_next_fqs=1"
                .into(),
        ];
        // With decimals, which a kubelet expects.
        arguments.extend(cpu_mhz().map(|mhz| format!("cpu_mhz={mhz:.3}")));
        arguments.extend_from_slice(lines);
        for Plug { socket, devfn, .. } in self.plugs {
            arguments.push(format!("virtio_uml.device={}:{BUS_DEVICE}:{devfn}", socket.display()));
        }
        arguments.iter().flat_map(|several| several.split(' ')).map(String::from).collect()
    }
}

/// The counter rate of the host's processor in MHz; perftest in the guest computes times from it.
fn cpu_mhz() -> Option<f64> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_a_guest_can_have() {
        assert_eq!("1G".parse(), Ok(Memory(1 << 30)));
        assert_eq!("3840M".parse(), Ok(Memory(3840 << 20)));
        for text in ["", "1", "G", "4G", "255M", "-1G", "1.5G", "99999999999999999999M", "17592186044417M"] {
            let why = text.parse::<Memory>().unwrap_err();
            assert!(why.contains("expected 256M to 3840M") && why.contains(text), "{why}");
        }
    }

    #[test]
    fn memory_grows_with_the_functions() {
        let with =
            |functions, asked: Option<u64>| Memory::with(functions, asked.map(|mib| Memory(mib << 20)));
        assert_eq!(with(8, Some(256)), Ok(Memory(256 << 20)));
        assert_eq!(with(64, None), Ok(Memory(1 << 30)));
        let least = with(128, None).unwrap().0 >> 20;
        assert!(least > 1024 && with(128, Some(least)).is_ok());
        let why = with(128, Some(least - 1)).unwrap_err();
        assert!(why.contains(&format!("expected {least}M or more for 128 functions")), "{why}");
        assert!(with(256, None).unwrap().0 <= Memory::MOST);
    }

    #[test]
    fn the_kernel_made_last_is_taken() {
        let room = &testkit::Scratch::new().0;
        assert_eq!(newest(room), None);
        for name in ["7.3-b", "7.3-a", "work-1"] {
            fs::create_dir_all(room.join(name)).unwrap();
        }
        for (name, age) in [("7.3-b", 100), ("7.3-a", 10)] {
            let file = fs::File::create(room.join(name).join("vmlinux")).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        assert_eq!(newest(room), Some(room.join("7.3-a/vmlinux")));
    }

    #[test]
    fn the_kernel_is_told_where_on_its_bus_a_function_is() {
        let plug = |fid, devfn| Plug { fid, socket: format!("/x/f{devfn}").into(), devfn };
        let boot = Boot {
            kernel: Path::new("/k"),
            world: Path::new("/x"),
            plugs: &[plug(0, 8), plug(1, 9)],
            cpus: 2,
            memory: Memory(1 << 30),
        };
        let arguments = boot.arguments(&["con1=fd:5,null".into()]);
        for wanted in
            ["mem=1024M", "ncpus=2", "init=/x/init", "con1=fd:5,null", "virtio_uml.device=/x/f9:1234:9"]
        {
            assert!(arguments.iter().any(|argument| argument == wanted), "{wanted}: {arguments:?}");
        }
        assert!(arguments.iter().all(|argument| !argument.contains(' ')));
        // As parsed by cAdvisor, which a kubelet contains.
        let mhz = arguments.iter().find_map(|argument| argument.strip_prefix("cpu_mhz="));
        assert!(mhz.is_none_or(|mhz| mhz.contains('.')), "{arguments:?}");
    }
}
