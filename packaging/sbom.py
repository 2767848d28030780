#!/usr/bin/env python3
"""sbom.py: prints a software bill of materials (CycloneDX 1.5, JSON) of a build of kvc: itself and the libraries that it is linked with.

    sbom.py VERSION PACKAGE...      packages as pkg-config names them; versions are those of this machine
"""

import json
import subprocess
import sys


def version_of(package):
    done = subprocess.run(["pkg-config", "--modversion", package], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"sbom.py: {done.stderr.strip()}")
    return done.stdout.strip()


def component(name, version, **more):
    return {"type": "library", "name": name, "version": version, "bom-ref": f"{name}@{version}", **more}


def main(version, packages):
    parts = [component(name, version_of(name)) for name in sorted(set(packages))]
    own = component("kvc", version)
    print(json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"component": own}, "components": parts,
                      "dependencies": [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}]}, indent=1))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
