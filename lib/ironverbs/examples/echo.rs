//! A server that sends back what it receives, and a client.
//!
//!     echo serve "node=/dev/shm/adapter fid=1" 7471
//!     echo ask "node=/dev/shm/adapter fid=2" 127.0.0.2:7471 hello

use ironverbs::{Device, Error, Listener, Pool, block_on};
use std::{env, error, net::SocketAddr};

fn main() -> Result<(), Box<dyn error::Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &*words.iter().map(|word| &**word).collect::<Vec<_>>() {
        ["serve", device, port] => Ok(block_on(serve(&Device::open(device)?, port.parse()?))?),
        ["ask", device, address, text] => {
            Ok(block_on(ask(&Device::open(device)?, address.parse()?, text.as_bytes()))?)
        }
        _ => Err("expected serve DEVICE PORT or ask DEVICE ADDRESS TEXT".into()),
    }
}

async fn serve(device: &Device, port: u16) -> Result<(), Error> {
    let listener = Listener::on(device, port)?;
    let pool = Pool::new(device, 16, 4096)?;
    println!("listening at {}", listener.address());
    loop {
        let connection = listener.accept().await?.accept().await?;
        println!("connected to {}", connection.peer().ip());
        // The client hangs up in the end, which closes the queue pair.
        while let Ok(message) = connection.recv(pool.empty()?).await {
            connection.send(message.into_buf()).await?;
        }
    }
}

async fn ask(device: &Device, address: SocketAddr, text: &[u8]) -> Result<(), Error> {
    let pool = Pool::new(device, 2, 4096)?;
    let connection = device.qp().connect(address, b"").await?;
    // Posted first, so that the answer finds it.
    let answer = connection.recv(pool.empty()?);
    connection.send(pool.take(text)?).await?;
    println!("{}", String::from_utf8_lossy(&answer.await?));
    connection.disconnect().await;
    Ok(())
}
