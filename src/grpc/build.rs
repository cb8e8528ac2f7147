//! Makes Rust types of the files in `proto/`, and their descriptors for reflection. `protox` compiles them, so that no
//! `protoc` has to be installed.

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["inference.proto", "health.proto"], ["proto"])?;
    let folder = PathBuf::from(std::env::var("OUT_DIR")?);
    File::create(folder.join("descriptors.bin"))?.write_all(&descriptors.encode_to_vec())?;
    // The bytes of tensors are shared with the message that they came in.
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
