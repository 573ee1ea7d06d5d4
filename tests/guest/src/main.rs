//! Boots guests: one for a script or a shell, or as many as the scenarios need.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use guest::images::Images;
use guest::machine::{Guest, Plan, interactive};
use guest::{Outcome, Trouble, report, scenarios};

#[derive(Parser)]
#[command(about = "Linux guests on the device model")]
struct Options {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Boot one guest, run a script in it, print what it says and end with its status
    Run(Run),
    /// Boot one guest with a shell on this terminal
    Shell(Machine),
    /// Run the scenarios whose names contain a word of FILTER; without any all but the long ones
    Test {
        /// Words
        filter: Vec<String>,
    },
    /// Name the scenarios
    List,
}

#[derive(Args)]
struct Machine {
    /// 6.1 or 6.12
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// vfio-user socket of a function; the first is at 0000:00:10.0, the next at 0000:00:11.0
    #[arg(long, value_name = "SOCKET")]
    plug: Vec<PathBuf>,
    /// With a virtual IOMMU, so that functions can be bound to vfio-pci
    #[arg(long)]
    iommu: bool,
    /// MB of memory
    #[arg(long, default_value_t = 1024)]
    memory: u32,
    /// Host name
    #[arg(long, default_value = "guest")]
    name: String,
    /// A further argument to QEMU
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    qemu: Vec<OsString>,
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    machine: Machine,
    /// Print the kernel's log after the script
    #[arg(long)]
    dmesg: bool,
    /// Seconds the script may take
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    /// File with the script; standard input without either
    #[arg(long)]
    script: Option<PathBuf>,
    /// The script itself
    #[arg(short, value_name = "TEXT")]
    command: Option<String>,
}

impl Machine {
    fn plan(self) -> Plan {
        let plan = Plan::new(&self.name).kernel(&self.kernel).qemu(self.qemu);
        Plan { plugs: self.plug, iommu: self.iommu, memory: self.memory, ..plan }
    }
}

fn run(run: Run) -> Outcome<u8> {
    let script = match (run.command, run.script) {
        (Some(text), _) => text,
        (None, Some(file)) => std::fs::read_to_string(file)?,
        (None, None) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
    };
    let mut guest = Guest::boot(&Images::ready()?, run.machine.plan())?;
    let output = guest.try_run(run.timeout, &script)?;
    print!("{}", output.text);
    if run.dmesg {
        for line in guest.dmesg()? {
            println!("{line}");
        }
    }
    if let Err(complaint) = guest.power_off() {
        eprintln!("guest: {complaint}");
    }
    Ok(u8::try_from(output.status).unwrap_or(1))
}

fn main() -> ExitCode {
    let done = match Options::parse().command {
        What::Run(options) => run(options),
        What::Shell(machine) => {
            Images::ready().and_then(|images| interactive(&images, machine.plan())).map(|()| 0)
        }
        What::List => {
            scenarios::all().iter().for_each(|scenario| println!("{:<24} {}", scenario.name, scenario.about));
            Ok(0)
        }
        What::Test { filter } => report::run(&scenarios::all(), &filter),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(Trouble::Cannot(words)) => {
            println!("skipped: {words}");
            ExitCode::SUCCESS
        }
        Err(Trouble::Failed(words)) => {
            eprintln!("guest: {words}");
            ExitCode::FAILURE
        }
    }
}
