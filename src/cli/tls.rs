//! `ledge tls`: the certificate that callers over `https://` see.

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use ledge_base::clock;
use ledge_listener::tls::CertificateFacts;

use super::{Exit, GlobalArgs, Output};
use crate::config::Config;

/// The arguments of `ledge tls`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TlsArgs {
    #[command(subcommand)]
    pub command: TlsCommand,
}

/// The verbs below `ledge tls`.
#[derive(Debug, Subcommand)]
pub enum TlsCommand {
    /// Show the certificate for https:// that is on the disk: its names, expiry and fingerprint.
    ///
    /// Before trusting a self-signed certificate, compare its fingerprint with the one that the client shows.
    Show(TlsShowArgs),
}

/// The arguments of `ledge tls show`.
#[derive(Debug, Args)]
pub struct TlsShowArgs {
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ledge tls show
  ledge tls show --json";

/// Runs the verb.
pub fn run(globals: &GlobalArgs, args: &TlsArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let TlsCommand::Show(args) = &args.command;
    let config = globals.load_config()?;
    let found = config.tls_source().inspect();
    let found =
        found.context("no address of http.listen or grpc.listen starts with https://, so no certificate is used")?;
    let is_made = config.http.tls.self_signed;
    let reason = if is_made {
        "the self-signed certificate does not exist or cannot be used; the server makes one when it starts"
    } else {
        "the files of http.tls cannot be used"
    };
    let found = found.context(reason)?;

    let certificate = &found.certificate;
    if args.json {
        let report = serde_json::json!({
            "file": found.certificate_file,
            "certificate": certificate,
            "client_certificates": config.http.tls.client_certificates,
            "listen": listeners(&config),
        });
        writeln!(out, "{report:#}")?;
    } else {
        write!(out, "{}", text(&config, &found.certificate_file.to_string(), certificate))?;
    }
    Ok(Exit::Success)
}

fn text(config: &Config, file: &str, certificate: &CertificateFacts) -> String {
    let signed = if certificate.self_signed { "itself" } else { &certificate.issuer };
    let rows = [
        ("file", file.to_owned()),
        ("names", certificate.shown_names()),
        ("signed by", signed.to_owned()),
        ("valid from", clock::rfc3339(certificate.not_before_ms)),
        ("valid until", clock::rfc3339(certificate.not_after_ms)),
        ("SHA-256", certificate.shown_fingerprint()),
        ("public key", certificate.public_key.clone()),
        ("shown at", listeners(config).join(", ")),
        ("client certificates", config.http.tls.client_certificates.to_string()),
    ];
    rows.map(|(name, value)| format!("{name:<19}  {value}\n")).concat()
}

fn listeners(config: &Config) -> Vec<String> {
    let listen = config.http.listen.iter().chain(&config.grpc.listen);
    listen.filter(|address| address.is_tls()).map(ToString::to_string).collect()
}
