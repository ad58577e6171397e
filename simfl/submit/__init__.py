"""Submission of experiments and sweeps to a running Ray cluster, Slurm, or Kubernetes with KubeRay.

`request` describes the job, `package` collects its files, and each target has a module: `ray_job`, `slurm`, `kuberay`.
Mistakes are reported in one line before anything is sent.
"""
