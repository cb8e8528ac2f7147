//! `ledge models catalogue | add | remove`: signed models that the owner of the box adds.

use std::io::Write;
use std::ops::ControlFlow;

use anyhow::bail;
use indicatif::HumanBytes;
use ledge_base::names::ModelName;
use ledge_egress::Egress;
use ledge_service::audit_event::AuditSink;
use ledge_updates::catalogue::{self, Catalogue, CatalogueDescription, CatalogueError, CatalogueModel};
use ledge_updates::config::RepositoryAddress;
use ledge_updates::download::DownloadLimits;
use serde_json::json;

use crate::cli::owner::restart_as_owner_of;
use crate::cli::{Exit, Output, block_on, progress};
use crate::config::Config;

/// Parses the address of a catalogue, or the path of its folder.
pub fn address(text: &str) -> anyhow::Result<RepositoryAddress> {
    if text.contains("://") {
        return Ok(text.parse()?);
    }
    Ok(RepositoryAddress::Folder(std::path::absolute(text)?))
}

/// `ledge models catalogue`.
pub fn list(
    config: &Config,
    from: Option<&RepositoryAddress>,
    as_json: bool,
    out: &mut Output,
) -> anyhow::Result<Exit> {
    let repository = &config.repository.path;
    restart_as_owner_of(repository)?;
    let mut catalogue = open(config, from)?;
    let models = block_on(catalogue.models())??;
    if as_json {
        let row = |model: &CatalogueModel| {
            json!({
                "name": model.name,
                "description": model.description,
                "bytes": model.bytes(),
                "state": model.presence(repository).name(),
                "problem": model.problem,
            })
        };
        writeln!(out, "{}", serde_json::to_string_pretty(&models.iter().map(row).collect::<Vec<_>>())?)?;
        return Ok(Exit::Success);
    }

    if models.is_empty() {
        writeln!(out, "The catalogue lists no models.")?;
    }
    for model in &models {
        let CatalogueDescription { description, license, source, accuracy, release } = &model.description;
        writeln!(out, "{} ({}, {})", model.name, HumanBytes(model.bytes()), model.presence(repository).name())?;
        let rows = [
            ("job", description),
            ("release", release),
            ("licence", license),
            ("source", source),
            ("accuracy", accuracy),
            ("problem", &model.problem),
        ];
        for (key, value) in rows {
            if let Some(value) = value {
                writeln!(out, "  {key:<9} {value}")?;
            }
        }
    }
    Ok(Exit::Success)
}

/// `ledge models add`.
pub fn add(
    config: &Config,
    name: &ModelName,
    from: Option<&RepositoryAddress>,
    out: &mut Output,
) -> anyhow::Result<Exit> {
    let repository = &config.repository.path;
    restart_as_owner_of(repository)?;
    if repository.join(name.as_str()).symlink_metadata().is_ok() {
        return Err(CatalogueError::Exists { folder: repository.join(name.as_str()) }.into());
    }
    let mut catalogue = open(config, from)?;
    let added = block_on(async {
        let models = catalogue.models().await?;
        let model = catalogue::find(&models, name)?;
        let template = "{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let bar = progress::bar(Some(model.bytes()), template).with_message(model.name.to_string());
        let advance = |bytes| {
            bar.inc(bytes);
            ControlFlow::Continue(())
        };
        catalogue.fetch(model, advance).await?;
        bar.finish_and_clear();
        Ok::<_, CatalogueError>(model.clone())
    })??;

    let folder = catalogue.install(&added, repository, || Ok(()))?.folder;
    writeln!(out, "Added {name} ({}) as {}.", HumanBytes(added.bytes()), folder.display())?;
    if config.repository.packaged.join(name.as_str()).is_dir() {
        writeln!(out, "It is served instead of the package's model of this name.")?;
    }
    writeln!(out, "Try it on this machine:        ledge models check {name}")?;
    writeln!(out, "A daemon that runs loads it:   systemctl reload ledge")?;
    Ok(Exit::Success)
}

/// `ledge models remove`.
pub fn remove(config: &Config, name: &ModelName, force: bool, out: &mut Output) -> anyhow::Result<Exit> {
    let repository = &config.repository.path;
    restart_as_owner_of(repository)?;
    match catalogue::remove(repository, name, force) {
        Err(CatalogueError::NoModel { .. }) if config.repository.packaged.join(name.as_str()).is_dir() => {
            bail!("{name} is a model of the package, which only removing the package removes");
        }
        removed => removed?,
    }
    writeln!(out, "Removed {name}. A daemon that runs stops serving it:   systemctl reload ledge")?;
    Ok(Exit::Success)
}

fn open(config: &Config, from: Option<&RepositoryAddress>) -> anyhow::Result<Catalogue> {
    // The verbs of the command line write no audit log.
    let egress = Egress::new(&config.egress, AuditSink::to_nowhere());
    let limits = DownloadLimits::new(&config.updates);
    Ok(Catalogue::open(&config.catalogue, from, &egress, limits)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_catalogue_is_an_address_or_a_folder() {
        let shown = |text| address(text).unwrap().to_string();
        assert_eq!(shown("/media/usb"), "file:///media/usb");
        assert_eq!(shown("file:///media/usb"), "file:///media/usb");
        assert_eq!(shown("https://models.example.com"), "https://models.example.com:443/");
        assert!(Path::new(shown("stick").strip_prefix("file://").unwrap()).is_absolute());
        assert!(address("ftp://example.com").is_err());
    }
}
