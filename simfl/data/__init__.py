"""The shelf of data sets. A component elsewhere is named `package.module:Class` in an experiment file."""

from simfl.data.base import Data
from simfl.shelf import Table

DATA: Table[Data] = Table(
    {
        "aqua": "simfl.data.aqua:Aqua",
        "clove": "simfl.data.clove:Clove",
        "coco_qa": "simfl.data.coco_qa:CocoQa",
        "debian_manuals": "simfl.data.debian_manuals:DebianManuals",
        "digits": "simfl.data.digits:Digits",
        "domains": "simfl.data.domains.benchmark:Domains",
        "due": "simfl.data.due:Due",
        "fldocvqa": "simfl.data.fldocvqa:Fldocvqa",
        "gqa": "simfl.data.gqa:Gqa",
        "hf_disk": "simfl.data.hf_disk:HfDisk",
        "image_folder": "simfl.data.image_folder:ImageFolder",
        "image_lists": "simfl.data.image_lists:ImageLists",
        "joined": "simfl.data.joined:Joined",
        "mp_docvqa": "simfl.data.docvqa_imdb:MpDocvqa",
        "multi_docqa": "simfl.data.multi_docqa.benchmark:MultiDocqa",
        "nlvr2": "simfl.data.nlvr2:Nlvr2",
        "own": "simfl.data.own:Own",
        "pdf_folder": "simfl.data.pdf_folder:PdfFolder",
        "pfl_docvqa": "simfl.data.pfl_docvqa:PflDocvqa",
        "prototypes": "simfl.data.prototypes:Prototypes",
        "provider_invoices": "simfl.data.provider_invoices.benchmark:ProviderInvoices",
        "real_words": "simfl.data.real_words:RealWords",
        "scene_text": "simfl.data.scene_text:SceneText",
        "scene_vqa": "simfl.data.scene_vqa.benchmark:SceneVqa",
        "snli_ve": "simfl.data.snli_ve:SnliVe",
        "sp_docvqa": "simfl.data.docvqa_imdb:SpDocvqa",
        "sroie": "simfl.data.sroie:Sroie",
        "tabfact": "simfl.data.tabfact:TabFact",
        "vcr": "simfl.data.vcr:Vcr",
        "vizwiz": "simfl.data.vizwiz:VizWiz",
        "vqa_v2": "simfl.data.vqa_v2:VqaV2",
        "word5": "simfl.data.word5.benchmark:Word5",
        "word_lists": "simfl.data.word_lists:WordLists",
        "wtq": "simfl.data.wtq:Wtq",
        "zugferd": "simfl.data.zugferd:Zugferd",
    }
)
