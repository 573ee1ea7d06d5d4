//! A guest: boots it, runs shell scripts in it, ends it. All waits have a time limit.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::images::Images;
use crate::{Outcome, bound_to_us, built, failed, portrait};

/// Maximum time from QEMU's start to the guest's first command.
const BOOT: Duration = Duration::from_secs(120);
/// Time beyond a script's own limit after which a guest counts as hung.
const GRACE: Duration = Duration::from_secs(20);
/// Time within which a guest acknowledges a command. After that the command is sent again, because QEMU's serial port has been seen to lose
/// bytes.
const TAKEN: Duration = Duration::from_secs(2);
/// The PCI slot of the first plugged function.
const FIRST_SLOT: usize = 0x10;

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Host name, also used in messages.
    pub name: String,
    /// `6.1` or `6.12`.
    pub kernel: String,
    /// vfio-user sockets; the function of the n-th is at PCI address 0000:00:(10+n).0, hexadecimal.
    pub plugs: Vec<PathBuf>,
    /// Memory in MB.
    pub memory: u32,
    /// Number of processors.
    pub cpus: u32,
    /// Adds a virtual IOMMU, for vfio-pci in the guest.
    pub iommu: bool,
    /// Additional arguments to QEMU.
    pub qemu: Vec<OsString>,
    /// Additional words for the kernel command line.
    pub append: String,
}

impl Plan {
    /// A guest of Debian 13 without functions.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            kernel: "6.12".into(),
            plugs: Vec::new(),
            memory: 1024,
            cpus: 2,
            iommu: false,
            qemu: Vec::new(),
            append: String::new(),
        }
    }

    /// Selects the kernel to boot.
    pub fn kernel(mut self, kernel: &str) -> Self {
        self.kernel = kernel.into();
        self
    }

    /// Plugs in the function behind a vfio-user socket.
    pub fn plug(mut self, socket: impl Into<PathBuf>) -> Self {
        self.plugs.push(socket.into());
        self
    }

    /// Adds a virtual IOMMU in front of the functions.
    pub fn iommu(mut self) -> Self {
        self.iommu = true;
        self
    }

    /// Adds arguments to QEMU.
    pub fn qemu<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.qemu.extend(arguments.into_iter().map(Into::into));
        self
    }

    fn arguments(&self, images: &Images, dir: &Path, serial: &str) -> Outcome<Vec<OsString>> {
        let kernel = images.kernel(&self.kernel)?;
        let mut append = format!(
            "console=ttyS0 loglevel=5 panic=-1 mitigations=off nokaslr sysrq_always_enabled unknown_nmi_panic no_timer_check random.trust_cpu=on guest={} {}",
            self.name, self.append
        );
        let mut machine = String::from("q35,memory-backend=m0,vmport=off");
        if self.iommu {
            append.push_str(" intel_iommu=on");
            machine.push_str(",kernel-irqchip=split");
        }
        let share = dir.join("share");
        let text = |s: String| OsString::from(s);
        let mut words: Vec<OsString> = Vec::new();
        let mut pair = |option: &str, value: OsString| words.extend([option.into(), value]);
        pair("-accel", "tcg,thread=multi".into());
        pair("-cpu", "max,la57=off".into());
        pair("-M", text(machine));
        pair("-smp", text(self.cpus.to_string()));
        pair("-m", text(format!("{}M", self.memory)));
        pair("-object", text(format!("memory-backend-memfd,id=m0,size={}M,share=on", self.memory)));
        pair("-display", "none".into());
        pair("-kernel", kernel.join("vmlinuz").into());
        pair("-initrd", kernel.join("initramfs").into());
        pair("-append", text(append));
        pair("-serial", text(serial.into()));
        pair("-monitor", text(format!("unix:{},server=on,wait=off", dir.join("monitor").display())));
        pair(
            "-chardev",
            text(format!("socket,id=agent,path={},server=on,wait=off", dir.join("agent").display())),
        );
        pair("-device", "virtio-serial-pci".into());
        pair("-device", "virtserialport,chardev=agent,name=agent".into());
        let root = format!(
            "if=none,id=root,format=raw,readonly=on,file.locking=off,file={}",
            images.root().display()
        );
        pair("-drive", text(root));
        pair("-device", "virtio-blk-pci,drive=root".into());
        pair("-virtfs", text(format!("local,path={},mount_tag=share,security_model=none", share.display())));
        let ours =
            format!("local,path={},mount_tag=built,security_model=none,readonly=on", built().display());
        pair("-virtfs", text(ours));
        if self.iommu {
            pair("-device", "intel-iommu,caching-mode=on".into());
        }
        for (n, socket) in self.plugs.iter().enumerate() {
            let device = format!(
                r#"{{"driver":"vfio-user-pci","id":"f{n}","bus":"pcie.0","addr":"{:#x}","socket":{{"type":"unix","path":"{}"}}}}"#,
                FIRST_SLOT + n,
                socket.display()
            );
            pair("-device", text(device));
        }
        words.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(OsString::from));
        words.extend(self.qemu.iter().cloned());
        Ok(words)
    }
}

/// The result of a script in a guest.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status; 124 on timeout.
    pub status: i32,
    /// Output of both streams.
    pub text: String,
}

/// A script that runs in a guest.
#[derive(Debug)]
#[must_use]
pub struct Running {
    id: u32,
    until: Instant,
    seconds: u64,
    script: String,
}

/// A booted guest; dropping it ends it.
#[derive(Debug)]
pub struct Guest {
    plan: Plan,
    dir: PathBuf,
    qemu: Child,
    port: UnixStream,
    answers: Receiver<String>,
    ended: HashMap<u32, i32>,
    /// Commands that the guest has not acknowledged: the text, and when it was sent.
    untaken: HashMap<u32, (String, Instant)>,
    next: u32,
    /// Number of lines of the kernel log already checked.
    seen: usize,
    release: String,
}

/// Makes a directory for a guest, with a path short enough for sockets.
fn make_dir(name: &str) -> Outcome<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("ivg-{}-{n}-{name}", std::process::id()));
    std::fs::create_dir_all(dir.join("share"))?;
    std::fs::write(dir.join("share/init"), include_str!("init.sh"))?;
    Ok(dir)
}

impl Guest {
    /// Starts a guest and waits until it accepts commands.
    pub fn boot(images: &Images, plan: Plan) -> Outcome<Self> {
        let mut booted = Self::boot_all(images, vec![plan])?;
        booted.pop().map_or_else(|| failed("no guest"), Ok)
    }

    /// Starts several guests at once and waits until all accept commands.
    pub fn boot_all(images: &Images, plans: Vec<Plan>) -> Outcome<Vec<Self>> {
        let mut guests = Vec::new();
        for plan in plans {
            guests.push(Self::start(images, plan)?);
        }
        for guest in &mut guests {
            guest.wait_ready()?;
        }
        Ok(guests)
    }

    fn start(images: &Images, plan: Plan) -> Outcome<Self> {
        let dir = make_dir(&plan.name)?;
        let log = std::fs::File::create(dir.join("qemu"))?;
        let serial = format!("file:{}", dir.join("console").display());
        let mut command = bound_to_us(images.qemu());
        command.args(plan.arguments(images, &dir, &serial)?);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut qemu = command.spawn()?;
        let until = Instant::now() + Duration::from_secs(30);
        let port = loop {
            if let Ok(port) = UnixStream::connect(dir.join("agent")) {
                break port;
            }
            let gone = qemu.try_wait()?.is_some();
            if gone || Instant::now() > until {
                let _ = qemu.kill();
                let _ = qemu.wait();
                let words = std::fs::read_to_string(dir.join("qemu")).unwrap_or_default();
                let _ = std::fs::remove_dir_all(&dir);
                return failed(format!("{}: QEMU does not start: {}", plan.name, words.trim()));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let reader = BufReader::new(port.try_clone()?);
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let (ended, untaken, release) = (HashMap::new(), HashMap::new(), String::new());
        Ok(Self { plan, dir, qemu, port, answers, ended, untaken, next: 0, seen: 0, release })
    }

    fn wait_ready(&mut self) -> Outcome {
        match self.answers.recv_timeout(BOOT) {
            Ok(line) if line.starts_with("ready ") => {
                self.release = line["ready ".len()..].trim().into();
                // The kernel's messages about QEMU's machine are ignored.
                self.dmesg().map(drop)
            }
            other => failed(self.last_words(&format!("expected the guest to be ready, found {other:?}"))),
        }
    }

    /// Name of the guest.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// The kernel's full version.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Directory that the guest sees as `/share`, writable by both.
    pub fn share(&self) -> PathBuf {
        self.dir.join("share")
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Starts a bash script in the guest with a time limit of `seconds`.
    pub fn start_script(&mut self, seconds: u64, script: &str) -> Outcome<Running> {
        self.next += 1;
        let id = self.next;
        std::fs::write(self.share().join(format!("{id}.sh")), script)?;
        self.send(id, format!("{id} {seconds} .\n"))?;
        let until = Instant::now() + Duration::from_secs(seconds) + GRACE;
        Ok(Running { id, until, seconds, script: script.into() })
    }

    fn send(&mut self, id: u32, line: String) -> Outcome {
        if let Err(error) = self.port.write_all(line.as_bytes()) {
            return failed(self.last_words(&format!("the guest takes no command: {error}")));
        }
        self.untaken.insert(id, (line, Instant::now()));
        Ok(())
    }

    /// Resends unacknowledged commands, and looks for scripts that ended without a report.
    fn look_again(&mut self, running: &Running) -> Outcome {
        let late = self.untaken.get(&running.id).filter(|(_, sent)| sent.elapsed() >= TAKEN);
        if let Some((line, _)) = late.cloned() {
            self.send(running.id, line)?;
        }
        let end = std::fs::read_to_string(self.share().join(format!("{}.end", running.id)));
        if let Some(status) = end.ok().and_then(|text| text.trim().parse().ok()) {
            self.ended.insert(running.id, status);
        }
        Ok(())
    }

    /// Returns the exit status of a started script if it has ended.
    pub fn poll(&mut self, running: &Running) -> Outcome<Option<i32>> {
        while let Ok(line) = self.answers.try_recv() {
            self.note(&line);
        }
        if Instant::now() > running.until {
            return self.wait(running).map(|output| Some(output.status));
        }
        self.look_again(running)?;
        Ok(self.ended.get(&running.id).copied())
    }

    fn note(&mut self, line: &str) {
        if let Some(id) = line.strip_prefix("got ").and_then(|id| id.trim().parse().ok()) {
            self.untaken.remove(&id);
            return;
        }
        let mut words = line.split_whitespace().map(str::parse::<i32>);
        if let (Some(Ok(id)), Some(Ok(status))) = (words.next(), words.next()) {
            self.ended.insert(id.unsigned_abs(), status);
        }
    }

    /// Waits for a started script.
    pub fn wait(&mut self, running: &Running) -> Outcome<Output> {
        while !self.ended.contains_key(&running.id) {
            let left = running.until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left.min(TAKEN)) {
                Ok(line) => self.note(&line),
                Err(RecvTimeoutError::Timeout) if left > TAKEN => self.look_again(running)?,
                Err(reason) => {
                    let how = match reason {
                        RecvTimeoutError::Timeout => "hangs",
                        RecvTimeoutError::Disconnected => "is gone",
                    };
                    let said = self.said(running.id);
                    let does = portrait::of(self.qemu.id(), &self.dir.join("monitor"));
                    return failed(self.last_words(&format!(
                        "the guest {how} in\n{}\nwhich said\n{said}\n{does}",
                        running.script
                    )));
                }
            }
        }
        let status = self.ended.remove(&running.id).unwrap_or(-1);
        Ok(Output { status, text: self.said(running.id) })
    }

    fn said(&self, id: u32) -> String {
        let bytes = std::fs::read(self.share().join(format!("{id}.out"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for a started script, which must end with status 0. Returns its output.
    pub fn done(&mut self, running: &Running) -> Outcome<String> {
        let output = self.wait(running)?;
        if output.status == 0 {
            return Ok(output.text);
        }
        let how = match output.status {
            124 | 137 => format!("not done after {} s", running.seconds),
            status => format!("ended with {status}"),
        };
        failed(format!(
            "{}: {how}\n{}\n--- it said\n{}",
            self.plan.name,
            running.script.trim(),
            output.text.trim()
        ))
    }

    /// Runs a bash script, which must end with status 0 within `seconds`. Returns its output.
    pub fn run(&mut self, seconds: u64, script: &str) -> Outcome<String> {
        let running = self.start_script(seconds, script)?;
        self.done(&running)
    }

    /// Runs a bash script within `seconds` and accepts any status.
    pub fn try_run(&mut self, seconds: u64, script: &str) -> Outcome<Output> {
        let running = self.start_script(seconds, script)?;
        self.wait(&running)
    }

    /// Returns the kernel log since the last look as lines `LEVEL,text`, with levels as in syslog.
    pub fn dmesg(&mut self) -> Outcome<Vec<String>> {
        let text = self.run(20, "busybox dmesg -r")?;
        let lines: Vec<String> = text.lines().skip(self.seen).map(String::from).collect();
        self.seen += lines.len();
        Ok(lines)
    }

    /// Returns `reason` followed by the last lines of the guest's console.
    pub fn last_words(&self, reason: &str) -> String {
        let tail = |file: &str, lines: usize| {
            let bytes = std::fs::read(self.dir.join(file)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        };
        let (console, qemu) = (tail("console", 150), tail("qemu", 10));
        format!("{}: {reason}\n--- end of its console\n{console}\n--- QEMU said\n{qemu}", self.plan.name)
    }

    /// Powers the guest off and waits for it.
    pub fn power_off(mut self) -> Outcome {
        // The time includes the shutdown of the guest's drivers.
        const OFF: Duration = Duration::from_secs(60);
        let lines = std::fs::read(self.dir.join("console"))
            .unwrap_or_default()
            .iter()
            .filter(|b| **b == b'\n')
            .count();
        let until = Instant::now() + OFF;
        let mut sent: Option<Instant> = None;
        while Instant::now() < until {
            if sent.is_none_or(|sent| sent.elapsed() >= TAKEN) {
                let _ = self.port.write_all(b"off 0 .\n");
                sent = Some(Instant::now());
            }
            if let Some(status) = self.qemu.try_wait()? {
                let console = std::fs::read(self.dir.join("console")).unwrap_or_default();
                let text = String::from_utf8_lossy(&console).into_owned();
                let since = text.lines().skip(lines);
                if let Some(line) = since.into_iter().find(|line| crate::log::trouble(line)) {
                    return failed(
                        self.last_words(&format!("its kernel complains while powering off: {line}")),
                    );
                }
                if status.success() {
                    return Ok(());
                }
                return failed(self.last_words(&format!("QEMU ended with {status}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        failed(self.last_words("expected the guest to power off"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::env::var_os("IRONVERBS_GUEST_KEEP").is_some() {
            eprintln!("{}: kept {}", self.plan.name, self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Boots a guest with its console on this terminal. Returns when it is powered off.
pub fn interactive(images: &Images, mut plan: Plan) -> Outcome {
    let dir = make_dir(&plan.name)?;
    plan.append.push_str(" guest.shell");
    let mut command = bound_to_us(images.qemu());
    command.args(plan.arguments(images, &dir, "mon:stdio")?);
    let status = command.status();
    let _ = std::fs::remove_dir_all(&dir);
    status?;
    Ok(())
}
