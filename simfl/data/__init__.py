"""Data sets: readers, partitions and bundled benchmarks. `DATA` lists them by the name an experiment file uses.

A component of another package is named `package.module:Class`.
"""

from simfl.data.base import Data
from simfl.registry import Registry

DATA: Registry[Data] = Registry(
    {
        "aqua": "simfl.data.readers.aqua:Aqua",
        "clove": "simfl.data.readers.clove:Clove",
        "coco_qa": "simfl.data.readers.coco_qa:CocoQa",
        "debian_manuals": "simfl.data.readers.debian_manuals:DebianManuals",
        "digits": "simfl.data.readers.digits:Digits",
        "domains": "simfl.data.benchmarks.domains.benchmark:Domains",
        "due": "simfl.data.readers.due:Due",
        "fldocvqa": "simfl.data.readers.fldocvqa:Fldocvqa",
        "gqa": "simfl.data.readers.gqa:Gqa",
        "hf_disk": "simfl.data.readers.hf_disk:HfDisk",
        "image_folder": "simfl.data.readers.image_folder:ImageFolder",
        "image_lists": "simfl.data.readers.image_lists:ImageLists",
        "instruction_tasks": "simfl.data.benchmarks.instruction_tasks:InstructionTasks",
        "instructions": "simfl.data.readers.instructions:Instructions",
        "joined": "simfl.data.readers.joined:Joined",
        "leaf": "simfl.data.readers.leaf:Leaf",
        "mp_docvqa": "simfl.data.readers.docvqa_imdb:MpDocvqa",
        "multi_docqa": "simfl.data.benchmarks.multi_docqa.benchmark:MultiDocqa",
        "nlvr2": "simfl.data.readers.nlvr2:Nlvr2",
        "own": "simfl.data.readers.own:Own",
        "pdf_folder": "simfl.data.readers.pdf_folder:PdfFolder",
        "pfl_docvqa": "simfl.data.readers.pfl_docvqa:PflDocvqa",
        "prototypes": "simfl.data.benchmarks.prototypes:Prototypes",
        "provider_invoices": "simfl.data.benchmarks.provider_invoices.benchmark:ProviderInvoices",
        "real_words": "simfl.data.readers.real_words:RealWords",
        "scene_text": "simfl.data.readers.scene_text:SceneText",
        "scene_vqa": "simfl.data.benchmarks.scene_vqa.benchmark:SceneVqa",
        "snli_ve": "simfl.data.readers.snli_ve:SnliVe",
        "sp_docvqa": "simfl.data.readers.docvqa_imdb:SpDocvqa",
        "sroie": "simfl.data.readers.sroie:Sroie",
        "table": "simfl.data.readers.table:Table",
        "tabfact": "simfl.data.readers.tabfact:TabFact",
        "vcr": "simfl.data.readers.vcr:Vcr",
        "vizwiz": "simfl.data.readers.vizwiz:VizWiz",
        "vqa_v2": "simfl.data.readers.vqa_v2:VqaV2",
        "word5": "simfl.data.benchmarks.word5.benchmark:Word5",
        "word_lists": "simfl.data.readers.word_lists:WordLists",
        "wtq": "simfl.data.readers.wtq:Wtq",
        "zugferd": "simfl.data.readers.zugferd:Zugferd",
    }
)
