//! `ironverbs demo`: Debian's `ib_read_lat` between two VFs, with perftest's table on the screen.

use std::process::ExitCode;
use std::time::Duration;

use node::NodeOptions;

use crate::options::Demo;
use crate::say::say_line;
use crate::{pair, perftest, place, say::fail};

const LIMIT: Duration = Duration::from_secs(60);

pub fn demo(demo: &Demo) -> ExitCode {
    match try_demo(demo) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(1, format!("demo: {why}")),
    }
}

fn try_demo(demo: &Demo) -> Result<(), String> {
    demo.identity.without_plan()?;
    let node = place::open(&demo.node.path(), &demo.identity.over(NodeOptions::default()));
    let node = node.map_err(|e| e.to_string())?;
    let (vfs, node) = (node.vfs(), node.dir().to_path_buf());
    if vfs < 2 {
        let node = node.display();
        return Err(format!(
            "expected an adapter of 2 VFs or more, found {vfs} in {node}; --adapter takes another's directory"
        ));
    }
    let port = pair::free_port()?;
    let common = |device: &str| -> Vec<String> {
        let mut args: Vec<String> = ["-d", device, "-x", "1", "-p"].map(String::from).to_vec();
        args.push(port.to_string());
        args
    };
    let server = common("iron1");
    let mut client = common("iron2");
    client.push("127.0.0.2".into());
    say_line!("ironverbs run -- ib_read_lat {} &", server.join(" "));
    say_line!("ironverbs run -- ib_read_lat {}", client.join(" "));
    let mut server = perftest::on_node(&node, "ib_read_lat", &server)?;
    let mut client = perftest::on_node(&node, "ib_read_lat", &client)?;
    pair::run(&mut server, &mut client, port, false, LIMIT).map(|_| ())
}
