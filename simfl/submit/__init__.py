"""Experiments and sweeps sent to where the machines are: a running Ray cluster, Slurm, Kubernetes with KubeRay.

`request` says what is to be run, `parcel` which files go along; each target is a file of its own: `ray_job`, `slurm`,
`kuberay`. What is read here is checked here, so a mistake is one line before anything is sent.
"""
